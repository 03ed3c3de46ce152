"""jax._src.numpy.ufuncs."""

from shardwise.base.missing_names import report_missing
from shardwise.numpy import ufunc

__all__ = ["ufunc"]  # esquilax, which Jumanji imports

report_missing(__name__, __all__)
