"""jax._src.core."""

from typing import Any

from shardwise.api.jaxprs.custom_trace import Trace, TraceTag, set_current_trace, take_current_trace
from shardwise.api.jaxprs.jaxpr import jaxpr_as_fun
from shardwise.api.jaxprs.trace_state import trace_state_clean
from shardwise.base.missing_names import report_missing
from shardwise.core import AbstractValue, ShapedArray, Tracer

__all__ = [
    "AbstractValue",  # quax
    "ShapedArray",  # Flax, quax
    "Trace",  # quax
    "TraceTag",  # quax
    "Tracer",  # quax
    "full_lower",  # quax
    "jaxpr_as_fun",  # quax
    "set_current_trace",  # quax
    "take_current_trace",  # quax
    "trace_state_clean",  # NumPyro
]


def full_lower(val: Any) -> Any:
    """Return what a tracer of a library stands for, by its method `full_lower`; other values as they are."""
    lower = getattr(val, "full_lower", None)
    return val if lower is None else lower()


report_missing(__name__, __all__)
