"""jax._src.core: whether functions are being traced, and the values of tracers."""

from typing import Any

from shardwise.api.jaxprs.trace_state import trace_state_clean
from shardwise.base.missing_names import report_missing

__all__ = [
    "full_lower",  # quax
    "trace_state_clean",  # NumPyro
]


def full_lower(val: Any) -> Any:
    """Return what a tracer of a library stands for, by its method `full_lower`; other values as they are."""
    lower = getattr(val, "full_lower", None)
    return val if lower is None else lower()


report_missing(__name__, __all__)
