"""jax.experimental.array_serialization: checkpoints of arrays. Shardwise's own are in `shardwise.checkpoints`."""

from shardwise.jax_modules.experimental.array_serialization import serialization
from shardwise.jax_modules.missing import report_missing

__all__ = ["serialization"]  # Orbax

report_missing(__name__, __all__)
