"""jax.extend.core: the parts of jax.core that libraries may use."""

from shardwise.api.jaxprs.custom_trace import TraceTag, set_current_trace, take_current_trace
from shardwise.api.jaxprs.jaxpr import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from shardwise.api.jaxprs.primitive import Primitive
from shardwise.api.jaxprs.trace_state import find_top_trace, get_opaque_trace_state
from shardwise.base.missing_names import report_missing
from shardwise.compiler.ir.types import ArrayType
from shardwise.core import valid_jaxtype
from shardwise.extend.core import primitives

__all__ = [
    "ClosedJaxpr",  # Diffrax, Equinox
    "DropVar",  # Haiku
    "Effect",  # Flax
    "Jaxpr",  # Diffrax, Equinox, Haiku, Optimistix
    "JaxprEqn",  # Haiku
    "Literal",  # Distrax, Equinox, Haiku, NumPyro
    "Primitive",  # Equinox
    "TraceTag",  # Haiku
    "Var",  # Distrax, Equinox, Haiku
    "find_top_trace",  # Equinox
    "get_opaque_trace_state",  # Flax, Haiku
    "jaxpr_as_fun",  # Haiku
    "mapped_aval",  # Equinox
    "primitives",  # Distrax, Haiku, NumPyro
    "set_current_trace",  # Haiku
    "take_current_trace",  # Haiku
    "unmapped_aval",  # Equinox
    "valid_jaxtype",  # Distrax
]


class Effect:
    """Base class of effects, which libraries derive from."""


def mapped_aval(size: int, axis: int | None, aval: ArrayType) -> ArrayType:
    """Return the type of an element of an array along `axis`."""
    return aval if axis is None else aval.with_shape((*aval.shape[:axis], *aval.shape[axis + 1 :]))


def unmapped_aval(size: int, axis: int | None, aval: ArrayType) -> ArrayType:
    """Return the type of an array of `size` elements of a type along `axis`."""
    return aval if axis is None else aval.with_shape((*aval.shape[:axis], size, *aval.shape[axis:]))


report_missing(__name__, __all__)
