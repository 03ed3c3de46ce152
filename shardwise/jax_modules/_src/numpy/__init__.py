"""Private modules of JAX that libraries import."""

from shardwise.base.missing_names import report_missing
from shardwise.jax_modules._src.numpy import ufuncs

__all__ = ["ufuncs"]

report_missing(__name__, __all__)
