"""jax._src.checkify: types in the annotations of Flax."""

from shardwise.base.missing_names import report_missing
from shardwise.experimental.check_sites import JaxException
from shardwise.experimental.checkify import Out

__all__ = ["JaxException", "Out"]  # Flax

report_missing(__name__, __all__)
