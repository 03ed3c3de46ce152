"""Products of narrow numbers in blocks, each block with a scale."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.lax.product import DotDimensionNumbers, dot

_BF16 = np.dtype(ml_dtypes.bfloat16)


def scaled_dot(
    lhs: Any,
    rhs: Any,
    *,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    dimension_numbers: DotDimensionNumbers | None = None,
    preferred_element_type: Any = None,
) -> Any:
    """The product of two arrays in bf16, each times its scales: one for each block along contracting dims.

    A scale has the dims of its operand; a contracting dim is shorter by the length of a block. Dims are those of
    `dot_general`; of matrices, unless told. The result is bf16 unless told.

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
            _check(side, type_of(operand, "scaled_dot"), type_of(scale, "scaled_dot"), contracting)
        scaled.append(_times(operand) if scale is None else _times(operand, scale))
    wanted = _BF16 if preferred_element_type is None else preferred_element_type
    return dot(*scaled, dimension_numbers=numbers, preferred_element_type=wanted)


def _check(side: str, operand: ArrayType, scale: ArrayType, contracting: Sequence[int]) -> None:
    if scale.ndim != operand.ndim:
        raise TypeError(f"scaled_dot: {side}_scale {scale} must have the dims of {side}, {operand}")
    for dim, (size, count) in enumerate(zip(operand.shape, scale.shape, strict=True)):
        if dim in contracting and (not count or size % count or size // count < 2):
            raise TypeError(
                f"scaled_dot: contracting dim {dim} of {side} {operand} must be cut into blocks of 2 or more by "
                f"{side}_scale {scale}"
            )
        if dim not in contracting and size != count:
            raise TypeError(f"scaled_dot: dim {dim} of {side}_scale {scale} must be that of {side}, {operand}")


@compiled_function
def _times(operand: Any, *scales: Any) -> Any:
    """An operand in bf16, times its scales."""
    x = astype_weak(as_operand(operand), _BF16, False)
    for scale in scales:
        blocks = astype_weak(as_operand(scale), _BF16, False)
        counts = blocks.type.shape
        shape = tuple(
            part for count, size in zip(counts, x.type.shape, strict=True) for part in (count, size // max(count, 1))
        )
        spread = Broadcast(shape, tuple(range(0, len(shape), 2)))(blocks)
        x = Mul()(x, Reshape(x.type.shape)(spread))
    return x
