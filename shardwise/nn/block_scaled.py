"""Matrix products of block-scaled operands: each block of elements along the contracting dim has a scale."""

from typing import Any

import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.lax.dot_products import mixed_dtype_dot
from shardwise.typing import ArrayLike, DTypeLike


def scaled_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    lhs_scales: ArrayLike,
    rhs_scales: ArrayLike,
    preferred_element_type: DTypeLike = np.float32,
) -> Array:
    """Multiply two batches of block-scaled matrices.

    Each scale applies to a block of `K / k` consecutive elements along the contracting dim K. The operands are
    multiplied by their scales and contracted in f32.

    Args:
        lhs: an array [B, M, K].
        rhs: an array [B, N, K].
        lhs_scales: the scales of `lhs`, [B, M, k]; k divides K.
        rhs_scales: the scales of `rhs`, [B, N, k].
        preferred_element_type: the dtype of the result.

    Returns:
        An array [B, M, N].

    Raises:
        TypeError: if an operand is not an array.
        ValueError: if an operand does not have rank 3, or if the shapes do not match.

    Example:
        >>> x = jnp.ones((1, 1, 4))
        >>> jax.nn.scaled_matmul(x, x, jnp.full((1, 1, 2), 2.0), jnp.ones((1, 1, 2)))
        Array([[[8.]]], dtype=float32)
    """
    types = [type_of(x, "scaled_matmul") for x in (lhs, rhs, lhs_scales, rhs_scales)]
    a, b, a_scales, b_scales = types
    if any(type.ndim != 3 for type in types):
        raise ValueError(f"scaled_matmul: all operands must have rank 3, not {', '.join(map(str, types))}")
    if (a.shape[0], a.shape[2]) != (b.shape[0], b.shape[2]):
        raise ValueError(f"scaled_matmul: {a} and {b} must have equal first and last dims")
    if (a_scales.shape[0], a_scales.shape[2]) != (b_scales.shape[0], b_scales.shape[2]) or a_scales.shape[0] != a.shape[
        0
    ]:
        raise ValueError(f"scaled_matmul: scales {a_scales} and {b_scales} must have equal first and last dims")
    if a_scales.shape[1] != a.shape[1] or b_scales.shape[1] != b.shape[1]:
        raise ValueError(f"scaled_matmul: scales {a_scales} and {b_scales} must have the second dims of {a} and {b}")
    if not a_scales.shape[2] or a.shape[2] % a_scales.shape[2]:
        raise ValueError(
            f"scaled_matmul: {a.shape[2]} elements cannot be divided into {a_scales.shape[2]} blocks of equal size"
        )
    return _scaled_matmul(
        lhs, rhs, lhs_scales, rhs_scales, dtype=requested_dtype("scaled_matmul", preferred_element_type)
    )


@compiled_function
def _scaled_matmul(
    lhs: ArrayLike, rhs: ArrayLike, lhs_scales: ArrayLike, rhs_scales: ArrayLike, *, dtype: DType
) -> Any:
    a, b = (_apply_scales(x, scales) for x, scales in ((lhs, lhs_scales), (rhs, rhs_scales)))
    return mixed_dtype_dot(a, b, op=Dot(((2,), (2,)), ((0,), (0,))), dtype=dtype)


def _apply_scales(operand: ArrayLike, scales: ArrayLike) -> Any:
    x, scale = (astype_weak(as_operand(z), np.float32, False) for z in (operand, scales))
    *lead, count = scale.type.shape
    block_size = x.type.shape[2] // count
    repeated = Broadcast((*lead, count, block_size), (0, 1, 2))(scale)
    return x * Reshape(x.type.shape)(repeated)
