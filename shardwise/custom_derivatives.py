"""jax.custom_derivatives: functions with derivative rules of the user."""

from typing import Any

from shardwise.api.jaxprs.jaxpr_forms import primitive_named
from shardwise.api.transformations.closure import closure_convert, custom_gradient
from shardwise.api.transformations.custom import custom_jvp, custom_vjp
from shardwise.api.transformations.derivative_rules import CustomVJPPrimal, SymbolicZero
from shardwise.api.transformations.linear_call import linear_call
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.tree_util import tree_map
from shardwise.typing import ArrayLike

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_jvp_call_p",
    "custom_vjp",
    "custom_vjp_call_p",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "zero_from_primal",
]

custom_jvp_call_p = primitive_named("custom_jvp_call")
custom_vjp_call_p = primitive_named("custom_vjp_call")


def custom_vjp_primal_tree_values(tree: object) -> Any:
    """Return the values of the operands of a fwd rule with `symbolic_zeros`.

    Args:
        tree: a pytree of `CustomVJPPrimal`s.

    Returns:
        A pytree like `tree`, of their values.

    Raises:
        TypeError: if a leaf is something else.

    Example:
        >>> primal = jax.custom_derivatives.CustomVJPPrimal(1.0, perturbed=True)
        >>> jax.custom_derivatives.custom_vjp_primal_tree_values([primal])
        [1.0]
    """

    def value(leaf: object) -> Any:
        if not isinstance(leaf, CustomVJPPrimal):
            raise TypeError(f"custom_vjp_primal_tree_values: expected a CustomVJPPrimal, not {leaf!r}")
        return leaf.value

    return tree_map(value, tree)


def zero_from_primal(val: object, symbolic_zeros: bool = False) -> Any:
    """Return the zero tangents of values.

    Args:
        val: a pytree of arrays and numbers.
        symbolic_zeros: whether to return `SymbolicZero`s in place of arrays.

    Returns:
        A pytree like `val`, of arrays of zeros or of `SymbolicZero`s.

    Raises:
        TypeError: if a leaf of `val` is neither an array nor a number.

    Example:
        >>> jax.custom_derivatives.zero_from_primal(jnp.ones(2))
        Array([0., 0.], dtype=float32)
    """

    def zero(leaf: ArrayLike) -> Array | SymbolicZero:
        type = type_of(leaf, "zero_from_primal")
        return SymbolicZero(type) if symbolic_zeros else zeros_of(type)

    return tree_map(zero, val)


set_public_names(__name__, __all__)
