"""Lowering of slices at traced indices, with explicit clamps where StableHLO clamps implicitly.

XLA's algebraic simplifier replaces `dynamic_slice(dynamic_slice(x, a), b)` by `dynamic_slice(x, a + b)`, which is wrong
if `a` or `b` is out of bounds (seen with jaxlib 0.10.2 to 0.11.2). It also rewrites a gather with one index vector as a
dynamic slice, and a scatter with one index vector as a dynamic slice, a select and an update. All of these are
therefore lowered with start indices that are in bounds, for which the rewrite is correct.
"""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.movement import i64_array_attribute


def lower_clamped_starts(hlo: Hlo, x: ArrayType, sizes: Sequence[int], starts: Sequence[Any]) -> list[Any]:
    """Clamp the start indices of a slice of `sizes`, so that the slice is in bounds of `x`."""
    clamped = []
    for start, dim_size, size in zip(starts, x.shape, sizes, strict=True):
        low = hlo.constant(0, start.type)
        if size == dim_size:
            clamped.append(low)
        else:
            high = hlo.constant(dim_size - size, start.type)
            clamped.append(hlo.op("stablehlo.clamp", (low, start, high), start.type))
    return clamped


def lower_slice_at(hlo: Hlo, x: HloValue, sizes: Sequence[int], starts: Sequence[Any]) -> Any:
    """Emit the slice of `sizes` at start indices that are in bounds."""
    attributes = f"slice_sizes = {i64_array_attribute(tuple(sizes))}"
    return hlo.op("stablehlo.dynamic_slice", (x, *starts), x.type.with_shape(tuple(sizes)), attributes)
