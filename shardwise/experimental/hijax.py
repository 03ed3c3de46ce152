"""jax.experimental.hijax: the names with which libraries declare types and primitives above those of jaxprs.

They can be declared, as Flax does when it is imported, and not used: `bind` and the types' constructors raise an error.
Flax uses them only if `flax_hijax_variable` is set. The names are those of JAX 0.10 to 0.12.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from shardwise.api.jaxprs.primitive import Primitive, Zero, instantiate_zeros
from shardwise.api.ref import AbstractRef
from shardwise.api.ref_view import TransformedRef
from shardwise.base.unsupported import set_unsupported_names
from shardwise.compiler.ir.op import UndefinedPrimal
from shardwise.compiler.ir.types import ArrayType as AbstractValue
from shardwise.core import ShapedArray

__all__ = [
    "AbstractRef",
    "AbstractValue",
    "AvalMutableQDD",
    "AvalQDD",
    "HiPrimitive",
    "HiType",
    "MutableHiType",
    "ShapedArray",
    "TransformedRef",
    "VJPHiPrimitive",
    "Zero",
    "aval_method",
    "aval_property",
    "control_flow_allowed_effects",
    "instantiate_zeros",
    "is_undefined_primal",
    "register_hitype",
]
_UNSUPPORTED = (
    *("GradAccum", "HiPrim", "HiPspec", "MappingSpec", "NullAccum", "RefAccum", "ValAccum"),
    *("apply_derived_linearization", "bdims_at_front", "jvp_from_lin", "linearize_from_jvp", "transpose_jvp"),
    *("transpose_linearized", "unmap_avals", "vjp_from_jvp", "vjp_from_lin", "vjp_fwd_from_jvp", "vjp_fwd_from_lin"),
    "vmap_rule",
)
_ADVICE = (
    "Define derivatives with `custom_jvp` or `custom_vjp`, batching with `custom_batching.custom_vmap`, new ops with "
    "`jax.extend.core.Primitive`, and mutable state with Refs (`new_ref`)."
)


def _unsupported(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: hijax types and primitives are not supported. Use Flax's variables without them, as by default "
        "(`nnx.var_defaults(hijax=False)`), or Refs (`new_ref`), which functions can close over and change."
    )


class HiPrimitive(Primitive):
    """A primitive on hijax types: it can be declared, and not applied."""

    def bind(self, *args: object, **params: object) -> Any:
        """Raise NotImplementedError."""
        _unsupported(f"bind of {self.name}")


class _Declared:
    def __init__(self, *args: object, **keywords: object):
        _unsupported(type(self).__name__)


class HiType(_Declared):
    """A type of values that are not arrays: it can be derived from, and has no instances."""


class MutableHiType(_Declared):
    """A type of objects that change: it can be derived from, and has no instances."""


class VJPHiPrimitive(_Declared):
    """An op on hijax types with its own derivative (Flax from 0.12.9 on): it can be derived from, and not applied."""


class AvalQDD(_Declared):
    """A type with a state that depends on data: it has no instances."""


class AvalMutableQDD(_Declared):
    """A type with a mutable state that depends on data: it has no instances."""


class _AllowedEffects:
    def add_type(self, effect: type) -> None:
        """Accept an effect in loops and branches; none occurs without hijax types."""


control_flow_allowed_effects = _AllowedEffects()


def register_hitype(value_class: type, type_of: Callable[[Any], Any]) -> None:
    """Declare the hijax type of a class."""


def aval_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a method of values of a hijax type."""
    return function


def aval_property(fget: Callable[..., Any]) -> property:
    """Declare a property of values of a hijax type."""
    return property(fget)


def is_undefined_primal(x: object) -> bool:
    """Return whether an operand of a transpose rule is linear, so that its value is not known."""
    return isinstance(x, UndefinedPrimal)


set_unsupported_names(__name__, _UNSUPPORTED, _ADVICE, __all__)
