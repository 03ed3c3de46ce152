"""jax._src.core."""

from shardwise.core import ShapedArray
from shardwise.jax_modules.missing import report_missing
from shardwise.jax_modules.trace_state import trace_state_clean

__all__ = ["ShapedArray", "trace_state_clean"]  # Flax; NumPyro

report_missing(__name__, __all__)
