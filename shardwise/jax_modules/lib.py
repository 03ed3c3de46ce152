"""jax.lib: the version of jaxlib."""

from shardwise.base._jaxlib import jaxlib_version
from shardwise.base.missing_names import report_missing

__all__ = ["__version__"]  # Equinox's tests

__version__ = jaxlib_version()

report_missing(__name__, __all__)
