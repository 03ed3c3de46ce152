"""jax.extend: what libraries that define primitives and read jaxprs import."""

from shardwise.jax_modules.extend import core, ifrt_programs, linear_util, source_info_util
from shardwise.jax_modules.missing import report_missing

__all__ = ["core", "ifrt_programs", "linear_util", "source_info_util"]

report_missing(__name__, __all__)
