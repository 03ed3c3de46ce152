"""jax.extend.core: the parts of jax.core that libraries may use."""

from collections.abc import Callable
from typing import Any

from shardwise.api.jaxprs.custom_trace import TraceTag, set_current_trace, take_current_trace
from shardwise.api.jaxprs.effects import Effect
from shardwise.api.jaxprs.jaxpr import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from shardwise.api.jaxprs.primitive import Primitive
from shardwise.api.jaxprs.trace_state import find_top_trace, get_opaque_trace_state, is_under_jit
from shardwise.base.missing_names import report_missing
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.trace.tracer import Tracer
from shardwise.core import valid_jaxtype
from shardwise.errors import ConcretizationTypeError
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
    "concrete_or_error",  # NetKet
    "find_top_trace",  # Equinox
    "get_opaque_trace_state",  # Flax, Haiku
    "jaxpr_as_fun",  # Haiku
    "mapped_aval",  # Equinox
    "nonempty_axis_env_DO_NOT_USE",
    "primitives",  # Distrax, Haiku, NumPyro
    "set_current_trace",  # Haiku
    "take_current_trace",  # Haiku
    "unmapped_aval",  # Equinox
    "unsafe_am_i_under_a_jit_DO_NOT_USE",
    "unsafe_get_axis_names_DO_NOT_USE",
    "valid_jaxtype",  # Distrax
]

unsafe_am_i_under_a_jit_DO_NOT_USE = is_under_jit


def nonempty_axis_env_DO_NOT_USE() -> bool:
    """Return whether an axis name is bound."""
    return bool(bound_axes())


def unsafe_get_axis_names_DO_NOT_USE() -> list[Any]:
    """Return the bound axis names, outermost first."""
    return list(bound_axes())


def concrete_or_error(force: Callable[[Any], Any] | None, val: object, context: str = "") -> Any:
    """Return `force(val)`, or `val` if `force` is None.

    Raises:
        ConcretizationTypeError: if `val` is a tracer without a concrete value; the message begins with `context`.
    """
    if isinstance(val, Tracer):
        use = context or "a concrete value is needed"
        val = val.frame.concrete(val, ConcretizationTypeError, use, lambda: "pass it as a static argument.")
    return val if force is None else force(val)


def mapped_aval(size: int, axis: int | None, aval: ArrayType) -> ArrayType:
    """Return the type of an element of an array along `axis`."""
    return aval if axis is None else aval.with_shape((*aval.shape[:axis], *aval.shape[axis + 1 :]))


def unmapped_aval(size: int, axis: int | None, aval: ArrayType, explicit_mesh_axis: object = None) -> ArrayType:
    """Return the type of an array of `size` elements of a type along `axis`.

    `explicit_mesh_axis`: the Explicit mesh axis, or a tuple of them, along which `axis` is sharded.
    """
    if axis is None:
        return aval
    if explicit_mesh_axis is None:
        return aval.with_dim(axis, size)
    axes = explicit_mesh_axis if isinstance(explicit_mesh_axis, tuple) else (explicit_mesh_axis,)
    return aval.with_dim(axis, size, ExplicitSharding.from_dims(aval.sharding.mesh, (axes,)))


report_missing(__name__, __all__)
