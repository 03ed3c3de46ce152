"""jax._src.checkify."""

from shardwise.base.missing_names import report_missing
from shardwise.experimental.check_sites import JaxException
from shardwise.experimental.checkify import Error, Out, checkify, user_checks

__all__ = ["Error", "JaxException", "Out", "checkify", "user_checks"]  # Flax

report_missing(__name__, __all__)
