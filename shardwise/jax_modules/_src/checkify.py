"""jax._src.checkify."""

from shardwise.experimental.check_sites import JaxException
from shardwise.experimental.checkify import Error, Out, checkify, user_checks
from shardwise.jax_modules.missing import report_missing

__all__ = ["Error", "JaxException", "Out", "checkify", "user_checks"]  # Flax

report_missing(__name__, __all__)
