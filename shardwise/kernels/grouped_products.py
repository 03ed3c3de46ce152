"""grouped_dot: groups of rows, each multiplied by a matrix of its own."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, as_strong, compiled_function, type_of
from shardwise.compiler.kernels.grouped_dot import GroupedDot
from shardwise.kernels.integer_operands import as_int32, check_integers
from shardwise.typing import ArrayLike


def grouped_dot(x: ArrayLike, weights: ArrayLike, group_sizes: ArrayLike) -> Array:
    """Multiply groups of rows by one matrix per group, as experts of a mixture do.

    It computes what `lax.ragged_dot` does. The kernel multiplies each row once, where `ragged_dot` multiplies each row
    by all matrices. Sums are accumulated in float32.

    Args:
        x: a matrix [M, K]. The rows of a group are adjacent.
        weights: one matrix per group, [G, K, N].
        group_sizes: the number of rows of each group, integers [G].

    Returns:
        A matrix [M, N] of the dtype to which both are promoted. Rows after the last group are 0.

    Raises:
        TypeError: if shapes do not fit, or `group_sizes` does not hold integers.

    Example:
        >>> jax.kernels.grouped_dot(jnp.ones((3, 2)), jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]]), jnp.array([1, 2]))
        Array([[3.],
               [7.],
               [7.]], dtype=float32)
    """
    check_integers(group_sizes, "grouped_dot", "group_sizes")
    rows, matrices, sizes = (type_of(operand, "grouped_dot") for operand in (x, weights, group_sizes))
    if [type.ndim for type in (rows, matrices, sizes)] != [2, 3, 1] or rows.shape[1] != matrices.shape[1]:
        raise TypeError(
            "grouped_dot: needs a matrix [M, K], weights [G, K, N] and group_sizes [G], not "
            f"{rows}, {matrices} and {sizes}"
        )
    if sizes.shape[0] != matrices.shape[0]:
        raise TypeError(
            f"grouped_dot: group_sizes is {sizes}, and the weights {matrices} have {matrices.shape[0]} groups"
        )
    dtype = jnp.result_type(as_inexact(x, "grouped_dot"), as_inexact(weights, "grouped_dot"))
    left, right = (as_strong(jnp.asarray(operand, dtype)) for operand in (x, weights))
    return _grouped_dot(left, right, as_operand(group_sizes))  # type: ignore[no-any-return]


@compiled_function
def _grouped_dot(x: Array, weights: Array, sizes: Array) -> Any:
    ends = jnp.cumsum(as_int32(sizes))
    offsets = jnp.concatenate([jnp.zeros(1, np.int32), ends])
    return GroupedDot()(x, weights, offsets)[0]
