"""How ops of a Pallas kernel that change shapes, reduce or multiply are computed in Triton IR."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import accumulation_dtype, is_float, is_integer
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.pallas.ranges import fits
from shardwise.compiler.kernels.pallas.tile import OutsideSubset, Range, Tile, padded_shape
from shardwise.compiler.kernels.triton_ir import F32, I1, I32, Block, TritonBuilder, next_power_of_two
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.reduce.argminmax import ArgExtremum
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Transpose

ShapeRule = Callable[[TritonBuilder, Any, Sequence[Tile], ArrayType], Tile]

_SMALLEST_DOT = 16
_SMALLEST_DOT_OF_BYTES = 32  # along the contracting dim
_LARGEST_SUM_OF_PRODUCTS = 2**15


def positions(kernel: TritonBuilder, size: int, axis: int, rank: int) -> Block:
    """Return the indices along a dim, as a block of `rank` dims of which the others have size 1."""
    block = kernel.range(next_power_of_two(size))
    for dim in range(rank):
        if dim != axis:
            block = block.expand(dim)
    return block


def fill_rest(kernel: TritonBuilder, x: Tile, dim: int, number: float) -> Tile:
    """Replace the elements of the block that are outside of the tile along a dim."""
    if x.block.shape[dim] == x.shape[dim]:
        return x
    inside = positions(kernel, x.shape[dim], dim, len(x.shape)) < x.shape[dim]
    return x.with_block(kernel.where(inside, x.block, number))


def full_tile(kernel: TritonBuilder, shape: Sequence[int], number: Any, dtype: Any) -> Tile:
    """Return a tile whose elements are equal to a number."""
    known = Range(int(number), int(number)) if dtype.kind in "iu" else None
    return Tile(kernel.full(padded_shape(shape), number, dtype), tuple(shape), known)


def _full(kernel: TritonBuilder, op: Full, operands: Sequence[Tile], out: ArrayType) -> Tile:
    return full_tile(kernel, out.shape, op.value.array, out.dtype)


def _iota(kernel: TritonBuilder, op: Iota, operands: Sequence[Tile], out: ArrayType) -> Tile:
    size = out.shape[op.dim]
    block = positions(kernel, size, op.dim, out.ndim).broadcast_to(padded_shape(out.shape))
    known = Range(0, size - 1)
    return Tile(block.to(out.dtype), out.shape, known if is_integer(out.dtype) and fits(known, out.dtype) else None)


def _reshape(kernel: TritonBuilder, op: Op, operands: Sequence[Tile], out: ArrayType) -> Tile:
    return reshaped(kernel, operands[0], out.shape)


def reshaped(kernel: TritonBuilder, x: Tile, shape: tuple[int, ...]) -> Tile:
    """Return the elements in row-major order under another shape."""

    def result(block: Block) -> Tile:
        return Tile(block, shape, x.range, x.pinned)

    if x.shape == shape:
        return x
    if not shape:  # all dims have size 1
        dtype = x.block.dtype
        block = x.block if dtype.itemsize > 1 else x.block.to(F32 if is_float(dtype) else I32)  # no sums of bytes
        while block.shape:
            block = _reduced(kernel, Sum.name, block, 0)
        return result(block.to(dtype))
    if not x.shape:
        return result(x.block.broadcast_to(shape))
    kept = tuple(size for size in shape if size != 1)
    if kept != tuple(size for size in x.shape if size != 1):
        if padded_shape(x.shape) != x.shape or padded_shape(shape) != shape:
            raise OutsideSubset(f"a reshape from {x.shape} to {shape}, whose sizes are not all powers of two")
        return result(x.block.reshape(shape))
    new_dims = _inserted_dims(x.shape, shape)
    if new_dims is None:
        removes_only = len(kept) == len(shape)
        tile = result(x.block.reshape(padded_shape(shape)))
        return replace(tile, before=x.block) if removes_only else tile
    block = x.block
    for dim in new_dims:
        block = block.expand(dim)
    return result(block)


def _inserted_dims(before: Sequence[int], after: Sequence[int]) -> list[int] | None:
    """Return the dims of size 1 that a reshape inserts; None if it also removes some."""
    dims, position = [], 0
    for dim, size in enumerate(after):
        if position < len(before) and before[position] == size:
            position += 1
        elif size == 1:
            dims.append(dim)
        else:
            return None
    return dims if position == len(before) else None


def _broadcast(kernel: TritonBuilder, op: Broadcast, operands: Sequence[Tile], out: ArrayType) -> Tile:
    (x,) = operands
    block, shape = x.block, padded_shape(out.shape)
    kept = tuple(size if dim in op.dims else 1 for dim, size in enumerate(shape))
    if x.before is not None and x.before.shape == kept:
        block = x.before  # numpy's broadcasting removes dims of size 1 first
    elif x.shape:
        for dim in range(out.ndim):
            if dim not in op.dims:
                block = block.expand(dim)
    return Tile(block.broadcast_to(shape), out.shape, x.range, x.pinned)


def _transpose(kernel: TritonBuilder, op: Transpose, operands: Sequence[Tile], out: ArrayType) -> Tile:
    return Tile(operands[0].block.transpose(op.permutation), out.shape, operands[0].range)


def _reduced(kernel: TritonBuilder, name: str, x: Block, dim: int) -> Block:
    kind = "f" if is_float(x.dtype) else "i"
    sign = "u" if x.dtype.kind in "bu" else "s"
    combine = {
        "sum": f"add{kind}",
        "reduce_prod": f"mul{kind}",
        "reduce_max": "maximumf" if kind == "f" else f"max{sign}i",
        "reduce_min": "minimumf" if kind == "f" else f"min{sign}i",
        "reduce_and": "andi",
        "reduce_or": "ori",
        "reduce_xor": "xori",
    }[name]
    return kernel.reduce(combine, x, dim)


def _reduce(kernel: TritonBuilder, op: Reduce, operands: Sequence[Tile], out: ArrayType) -> Tile:
    """Reduce narrow floats as float32, and booleans as int32."""
    (x,) = operands
    name, dtype = op.name, x.block.dtype
    if dtype == I1:
        name = {
            "sum": "reduce_or",
            "reduce_prod": "reduce_and",
            "reduce_max": "reduce_or",
            "reduce_min": "reduce_and",
        }.get(name, name)
    wide = I32 if dtype == I1 else F32 if is_float(dtype) else dtype
    neutral = op.reduction.neutral(dtype if dtype == I1 else accumulation_dtype(dtype))
    tile = x.with_block(x.block.to(wide))
    for dim in sorted(op.dims, reverse=True):
        block = fill_rest(kernel, tile, dim, int(neutral) if dtype == I1 else neutral).block
        shape = tuple(size for number, size in enumerate(tile.shape) if number != dim)
        tile = Tile(_reduced(kernel, name, block, dim), shape)
    return Tile(tile.block.to(dtype), out.shape)


def _arg_extremum(kernel: TritonBuilder, op: ArgExtremum, operands: Sequence[Tile], out: ArrayType) -> Tile:
    """Return the least index whose element is the extremum, or NaN."""
    (x,) = operands
    if len(op.dims) != 1 or x.block.dtype == I1:
        raise OutsideSubset(f"{op.name} over several dims or of booleans")
    (dim,) = op.dims
    wide = F32 if is_float(x.block.dtype) else x.block.dtype
    limits: Any = np.iinfo(wide) if wide != F32 else None
    most = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
    tile = fill_rest(kernel, x.with_block(x.block.to(wide)), dim, most[op.name == "argmin"])
    best = _reduced(kernel, "reduce_min" if op.name == "argmin" else "reduce_max", tile.block, dim).expand(dim)
    chosen = tile.block.equals(best)
    if wide == F32:
        chosen = chosen | tile.block.differs(tile.block)
    size = x.shape[dim]
    index = positions(kernel, size, dim, len(x.shape)).broadcast_to(tile.block.shape)
    return Tile(kernel.where(chosen, index, size).min(dim).to(out.dtype), out.shape, Range(0, size))


def _dot(kernel: TritonBuilder, op: Dot, operands: Sequence[Tile], out: ArrayType) -> Tile:
    x, y = operands
    if op.batch[0] or len(op.contract[0]) != 1 or len(x.shape) > 2 or len(y.shape) > 2:
        raise OutsideSubset("a product with batch dims, or of more than two dims")
    x = _oriented(kernel, x, op.contract[0][0], 1)
    y = _oriented(kernel, y, op.contract[1][0], 0)
    (rows, inner), columns = x.block.shape, y.block.shape[1]
    dtype = x.block.dtype
    total = F32 if is_float(dtype) else I32
    if not is_float(dtype) and dtype != np.dtype(np.int8):
        raise OutsideSubset(f"a product of {dtype}")
    x, y = fill_rest(kernel, x, 1, 0), fill_rest(kernel, y, 0, 0)
    least = _SMALLEST_DOT_OF_BYTES if dtype.itemsize == 1 else _SMALLEST_DOT
    if min(rows, columns) >= _SMALLEST_DOT and inner >= least:
        exact = dtype == F32 and "HIGHEST" in op.precision
        block = kernel.dot(x.block, y.block, kernel.full((rows, columns), 0, total), exact=exact)
    elif rows * inner * columns <= _LARGEST_SUM_OF_PRODUCTS:
        block = (x.block.to(total).expand(2) * y.block.to(total).expand(0)).sum(1)
    else:
        raise OutsideSubset(
            f"a product of sizes {rows}×{inner} and {inner}×{columns}: Triton multiplies matrices of at least "
            f"{_SMALLEST_DOT}×{least} and {least}×{_SMALLEST_DOT}"
        )
    result = Tile(block.to(out.dtype), (x.shape[0], y.shape[1]))
    return reshaped(kernel, result, out.shape)


def _oriented(kernel: TritonBuilder, x: Tile, contracted: int, target: int) -> Tile:
    """Return an operand of a product as a matrix whose dim `target` is contracted."""
    if len(x.shape) == 1:
        shape = (1, *x.shape) if target else (*x.shape, 1)
        return reshaped(kernel, x, shape)
    if contracted == target:
        return x
    return Tile(x.block.transpose((1, 0)), (x.shape[1], x.shape[0]))


SHAPE_RULES: dict[str, ShapeRule] = {
    "full": _full,
    "iota": _iota,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "argmax": _arg_extremum,
    "argmin": _arg_extremum,
    "dot": _dot,
    **{
        name: _reduce
        for name in ("sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor")
    },
}
