"""Functions about derivatives."""

from typing import Any

from shardwise import tree
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient


def stop_gradient(x: Any) -> Any:
    """The arrays of a tree, through which no derivative flows.

    >>> jax.grad(lambda x: x * lax.stop_gradient(x))(3.0)
    Array(3., dtype=float32)
    """

    def stopped(leaf: Any) -> Any:
        operand = as_operand(leaf, "stop_gradient")
        return StopGradient()(operand) if is_inexact(operand.type.dtype) else operand

    return tree.map(stopped, x)
