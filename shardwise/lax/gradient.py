"""`stop_gradient`."""

from typing import Any, TypeVar

from shardwise import tree
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient

_T = TypeVar("_T")


def stop_gradient(x: _T) -> _T:
    """Return the arrays of a pytree with a gradient of zero.

    Args:
        x: a pytree of arrays.

    Returns:
        The same pytree. Derivatives treat it as a constant.

    Raises:
        TypeError: if a leaf is not an array or a number.

    Example:
        >>> jax.grad(lambda x: x * lax.stop_gradient(x))(3.0)
        Array(3., dtype=float32, weak_type=True)
    """

    def stop(leaf: Any) -> Any:
        operand = as_operand(leaf, "stop_gradient")
        return StopGradient()(operand) if is_inexact(operand.type.dtype) else operand

    return tree.map(stop, x)
