"""jax._src.core."""

from shardwise.api.jaxprs.trace_state import trace_state_clean
from shardwise.base.missing_names import report_missing
from shardwise.core import ShapedArray

__all__ = ["ShapedArray", "trace_state_clean"]  # Flax; NumPyro

report_missing(__name__, __all__)
