"""`scaled_dot`: matrix products of block-scaled narrow dtypes."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.lax.dot_products import DotDimensionNumbers, dot
from shardwise.typing import ArrayLike, DTypeLike

_BF16 = np.dtype(ml_dtypes.bfloat16)


def scaled_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    lhs_scale: ArrayLike | None = None,
    rhs_scale: ArrayLike | None = None,
    dimension_numbers: DotDimensionNumbers | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Compute the dot product of block-scaled operands, in bf16.

    Args:
        lhs, rhs: arrays, usually of a narrow float dtype. They are converted to bf16.
        lhs_scale, rhs_scale: the scales of the blocks along the contracting dims. A scale has the dims of its operand,
            but a contracting dim is shorter by the block size. None means no scaling.
        dimension_numbers: ((contracting dims of lhs, of rhs), (batch dims of lhs, of rhs)). None means a product of
            matrices.
        preferred_element_type: the dtype of the result. None means bf16.

    Returns:
        An array with the batch dims, then the other dims of `lhs`, then those of `rhs`.

    Raises:
        TypeError: if a scale does not divide its operand into blocks of at least 2 elements, or the dims do not agree.

    Example:
        >>> x = jnp.ones((1, 4), jnp.float8_e4m3fn)
        >>> lax.scaled_dot(x, x.T, lhs_scale=jnp.array([[1.0, 2.0]]), preferred_element_type=jnp.float32)
        Array([[6.]], dtype=float32)
    """
    numbers = dimension_numbers
    if numbers is None:
        numbers = (((type_of(lhs, "scaled_dot").ndim - 1,), (0,)), ((), ()))
    scaled = []
    sides = (("lhs", lhs, lhs_scale, numbers[0][0]), ("rhs", rhs, rhs_scale, numbers[0][1]))
    for side, operand, scale, contracting in sides:
        if scale is not None:
            _check_scale(side, type_of(operand, "scaled_dot"), type_of(scale, "scaled_dot"), contracting)
        scaled.append(_scale(operand) if scale is None else _scale(operand, scale))
    out_dtype = _BF16 if preferred_element_type is None else preferred_element_type
    return dot(*scaled, dimension_numbers=numbers, preferred_element_type=out_dtype)


def _check_scale(side: str, operand: ArrayType, scale: ArrayType, contracting: Sequence[int]) -> None:
    """Check the shape of the scales of an operand."""
    if scale.ndim != operand.ndim:
        raise TypeError(f"scaled_dot: {side}_scale {scale} must have the rank of {side} {operand}")
    for dim, (size, count) in enumerate(zip(operand.shape, scale.shape, strict=True)):
        if dim in contracting and (not count or size % count or size // count < 2):
            raise TypeError(
                f"scaled_dot: {side}_scale {scale} must divide contracting dim {dim} of {side} {operand} into blocks "
                "of 2 or more elements"
            )
        if dim not in contracting and size != count:
            raise TypeError(f"scaled_dot: dim {dim} of {side}_scale {scale} must have the size of {side} {operand}")


@compiled_function
def _scale(operand: ArrayLike, *scales: ArrayLike) -> Any:
    """Convert an operand to bf16 and multiply it by its scales."""
    x = astype_weak(as_operand(operand), _BF16, False)
    for scale in scales:
        block_scales = astype_weak(as_operand(scale), _BF16, False)
        counts = block_scales.type.shape
        shape = tuple(
            part for count, size in zip(counts, x.type.shape, strict=True) for part in (count, size // max(count, 1))
        )
        repeated = Broadcast(shape, tuple(range(0, len(shape), 2)))(block_scales)
        x = Mul()(x, Reshape(x.type.shape)(repeated))
    return x
