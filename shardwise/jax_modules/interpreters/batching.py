"""jax.interpreters.batching: batching rules of primitives."""

from shardwise.api.jaxprs.primitive import axis_primitive_batchers, primitive_batchers
from shardwise.base.missing_names import report_missing

__all__ = ["axis_primitive_batchers", "not_mapped", "primitive_batchers"]  # Equinox

not_mapped = None  # the batch dim of an operand that has none

report_missing(__name__, __all__)
