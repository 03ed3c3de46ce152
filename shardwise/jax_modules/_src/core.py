"""jax._src.core: whether functions are being traced, the values of tracers, and shapes."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.api.jaxprs.trace_state import trace_state_clean
from shardwise.base.missing_names import report_missing

__all__ = [
    "DimSize",  # torchax, in annotations
    "Shape",  # torchax, in annotations
    "canonicalize_shape",  # torchax
    "full_lower",  # quax
    "trace_state_clean",  # NumPyro
]

DimSize = int
Shape = Sequence[int]


def canonicalize_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of Python integers."""
    return tuple(map(operator.index, shape))


def full_lower(val: Any) -> Any:
    """Return what a tracer of a library stands for, by its method `full_lower`; other values as they are."""
    lower = getattr(val, "full_lower", None)
    return val if lower is None else lower()


report_missing(__name__, __all__)
