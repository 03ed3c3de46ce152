"""StableHLO lowering of slices, concatenations and zeros along one dim."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.movement import i64_array_attribute


def resize_dim(x: ArrayType, dim: int, size: int) -> ArrayType:
    """Return the type with another size of `dim`."""
    return x.with_shape((*x.shape[:dim], size, *x.shape[dim + 1 :]))


def lower_slice(hlo: Hlo, x: HloValue, dim: int, start: int, stop: int) -> Any:
    """Emit the elements of `x` from `start` to `stop` along `dim`; return `x` itself if these are all elements."""
    if (start, stop) == (0, x.type.shape[dim]):
        return x
    out = resize_dim(x.type, dim, stop - start)
    low, high = [0] * out.ndim, list(out.shape)
    low[dim], high[dim] = start, stop
    starts, limits, strides = (i64_array_attribute(values) for values in (low, high, [1] * out.ndim))
    attributes = f"start_indices = {starts}, limit_indices = {limits}, strides = {strides}"
    return hlo.op("stablehlo.slice", (x,), out, attributes)


def lower_concatenate(hlo: Hlo, parts: Sequence[Any], dim: int) -> Any:
    """Emit the concatenation of one or more parts along `dim`."""
    if len(parts) == 1:
        return parts[0]
    out = resize_dim(parts[0].type, dim, sum(part.type.shape[dim] for part in parts))
    return hlo.op("stablehlo.concatenate", parts, out, f"dimension = {dim} : i64")


def lower_zeros(hlo: Hlo, x: ArrayType, dim: int, size: int) -> list[Any]:
    """Emit zeros of this size along `dim`, to be concatenated with arrays of type `x`; nothing if the size is 0."""
    return [hlo.constant(0, resize_dim(x, dim, size).strong())] if size else []
