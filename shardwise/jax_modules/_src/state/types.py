"""jax._src.state.types: the type of mutable references."""

from shardwise.api.ref import AbstractRef
from shardwise.base.missing_names import report_missing

__all__ = ["AbstractRef"]  # Flax asks whether a type is one

report_missing(__name__, __all__)
