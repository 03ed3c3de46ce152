"""jax.interpreters.batching: batching rules of primitives."""

from shardwise.api.jaxprs.primitive import axis_primitive_batchers, primitive_batchers
from shardwise.api.transformations.vmappable import register_vmappable
from shardwise.base.missing_names import report_missing

__all__ = [
    "axis_primitive_batchers",  # Equinox
    "not_mapped",  # Equinox
    "primitive_batchers",  # Equinox
    "register_vmappable",  # libraries with containers of their own, such as sparse arrays
]

not_mapped = None  # the batch dim of an operand that has none

report_missing(__name__, __all__)
