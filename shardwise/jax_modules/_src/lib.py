"""jax._src.lib: the modules of jaxlib."""

from shardwise.base._jaxlib import xla_client
from shardwise.base.missing_names import report_missing

__all__ = ["xla_client"]  # modules of PJRT plugins

report_missing(__name__, __all__)
