"""grouped_dot: groups of rows of a matrix, each multiplied by a matrix of its own, as experts need.

    grouped_dot      x [M, K], weights [G, K, N], offsets i32[G + 1] → [M, N]
    grouped_outer    x [M, K], y [M, N], offsets i32[G + 1] → [G, K, N]: the product of each group's rows of x and y

Group g has the rows from offsets[g] to offsets[g + 1]. Rows in no group are 0 in the result. Each op is the gradient of
the other. A kernel multiplies each row once; the plain ops multiply each row by all matrices, with zeros elsewhere.

Operands of float8 dtypes have scales, which are two more operands, and the op has the dtype of the result. The units
for float8 read numbers that are summed from adjacent bytes, so grouped_outer has the transposed operands x [K, M] and
y [N, M], and grouped_dot should have transposed weights.

Rows, groups (experts), and the dims of the matrices can be sharded: each device has the offsets of its own rows and
groups.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_float8, numpy_carrier
from shardwise.compiler.ir.op import LocalContext
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import F32, I32, I64, Block, Pointer, TritonBuilder, next_power_of_two
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.scaled_dot import SCALE, ScaledDot
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.min_max import Min
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import permute
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule

_LARGEST_TILE = 128
_LARGEST_WIDTH = {1: 256, 2: 128, 4: 128}  # columns of a tile, by the size of an element
_LARGEST_DEPTH = {1: 128, 2: 64, 4: 32}  # products that a tile sums per iteration
_LEAST_DEPTH = {1: 32, 2: 16, 4: 16}
_STAGES = {1: 4, 2: 3, 4: 3}  # the largest tiles need 192 KiB of shared memory in float8, and 96 KiB in wider floats
_MOST_ELEMENTS = 2**31
_ROWS, _INNER, _COLUMNS, _GROUPS, _OFFSETS = range(5)  # factors


@record
class Grouped(KernelOp):
    """The base class.

    Attributes:
        dtype: the dtype of the result of float8 operands, which have scales; None for other operands.
        split_accumulator: whether parts of sums of float8 products are added in float32, as in `ScaledDot`.
    """

    dtype: DType | None = None
    split_accumulator: bool = field(default=False, repr=False, kw_only=True)

    @property
    def needs_float8_units(self) -> bool:  # type: ignore[override]
        return self.dtype is not None

    def _check(self, x: ArrayType, y: ArrayType, offsets: ArrayType, *scales: ArrayType) -> None:
        if offsets.ndim != 1 or offsets.dtype != I32:
            raise TypeError(f"{self.name}: offsets must be i32[G + 1], not {offsets}")
        if self.dtype is None:
            if x.ndim != 2 or not is_float(x.dtype) or y.dtype != x.dtype or scales:
                raise TypeError(f"{self.name}: needs a matrix and floats of its dtype, not {x} and {y}")
        elif x.ndim != 2 or not (is_float8(x.dtype) and is_float8(y.dtype)) or [*scales] != [SCALE] * 2:
            raise TypeError(f"{self.name}: needs a matrix and numbers of float8 with two scales, not {x} and {y}")

    def _unscaled_factors(self, *types: ArrayType) -> FactorRule:
        """Return the factor rule without scales."""
        raise self.missing_rule("factors")

    def factors(self, *types: ArrayType) -> FactorRule:
        rule = self._unscaled_factors(*types[:3])
        return replace(rule, operands=(*rule.operands, *((),) * (len(types) - 3)))

    def _product(
        self, x: Operand, y: Operand, left: tuple[int, ...], right: tuple[int, ...], scales: Sequence[Operand]
    ) -> Any:
        if self.dtype is not None:
            dot = ScaledDot((left, right), ((), ()), self.dtype, split_accumulator=self.split_accumulator)
            return dot(x, y, *scales)
        dtype = x.type.dtype
        return Convert(dtype)(Dot((left, right), dtype=numpy_carrier(dtype))(x, y))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if self.dtype is None:
            return super().jvp(primals, tangents)
        raise TypeError(
            f"{self.name}: a product of float8 numbers has no derivative. A product of an FP8Policy has first "
            "derivatives only: compute second ones with the function that was not transformed."
        )

    def _scaled(self, kernel: TritonBuilder, total: Block, scales: Sequence[Pointer]) -> Block:
        """Return sums of float8 numbers times both scales; other sums as they are."""
        if not scales:
            return total
        left, right = (kernel.load(scale, kernel.full((), 0, I32)) for scale in scales)
        return total * (left * right)

    def obstacle(self, *types: ArrayType) -> str:
        for type in types[:2]:
            if type.dtype.itemsize == 1 and self.dtype is None:
                return f"{type} has a dtype that the kernel does not multiply"
        for type in (*types[:2], *self.out_types(*types)):
            if type.size >= _MOST_ELEMENTS:
                return f"{type} has more elements than offsets of 32 bits reach"
        return super().obstacle(*types)


def _local_offsets(offsets: Operand, groups: int, first_group: Operand | None, first_row: Operand | None) -> Any:
    """Return the offsets of a device's groups, in its rows.

    Args:
        offsets: the offsets of all groups, in all rows.
        groups: the number of groups of this device.
        first_group: the index of the first one; None if groups are not sharded, but may be padded.
        first_row: the index of its first row; None if rows are not sharded.
    """
    result = Expr(offsets)
    count = offsets.type.shape[0]
    if first_group is not None or groups + 1 != count:
        shape = (groups + 1, count)
        own = Expr(Iota(shape, 0, I32)())
        if first_group is not None:
            own = own + Expr(Broadcast(shape, ())(first_group))
        own = apply(Min(), own, Expr(full(shape, count - 1, I32)))  # a padding group is empty
        is_own = own == Expr(Iota(shape, 1, I32)())
        result = apply(Sum((1,)), where(is_own, Expr(Broadcast(shape, (1,))(offsets)), 0))
    if first_row is not None:
        result = result - Expr(Broadcast(result.array.type.shape, ())(first_row))
    return result.array


def _in_group(offsets: Operand, rows: int) -> Expr:
    """Return a mask [G, M]: which rows each group has."""
    groups = offsets.type.shape[0] - 1
    index = Expr(Iota((groups, rows), 1, I32)())
    start, end = (
        Expr(Broadcast((groups, rows), (0,))(Slice((first,), (first + groups,), (1,))(offsets))) for first in (0, 1)
    )
    return (start <= index) & (index < end)


def masked_rows(x: Operand, offsets: Operand) -> Any:
    """Return [G, M, K]: the rows of each group, and zeros."""
    mask = _in_group(offsets, x.type.shape[0])
    shape = (*mask.array.type.shape, x.type.shape[1])
    return where(Expr(Broadcast(shape, (0, 1))(mask.array)), Expr(Broadcast(shape, (1, 2))(x)), 0.0).array


def _tile(size: int, largest: int = _LARGEST_TILE, least: int = 16) -> int:
    return min(largest, max(least, next_power_of_two(size)))


def _depth(size: int, dtype: DType) -> int:
    """Return how many products of a tile are summed per iteration, of `size`."""
    return _tile(size, _LARGEST_DEPTH[dtype.itemsize], _LEAST_DEPTH[dtype.itemsize])


def _warps(rows: int, columns: int) -> int:
    return 8 if rows * columns >= 128 * 128 else 4


@final
@record
class GroupedDot(Grouped):
    """(x [M, K], weights [G, K, N], offsets, scale of x and of the weights if these are float8) → [M, N].

    Attributes:
        transposed: whether the weights are [G, N, K].
    """

    name = "grouped_dot"
    transposed: bool = False

    def _sizes(self, x: ArrayType, weights: ArrayType) -> tuple[int, int, int, int]:
        """Return the number of rows, of elements of a row, of columns of the result, and of groups."""
        return *x.shape, weights.shape[1 if self.transposed else 2], weights.shape[0]  # type: ignore[return-value]

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, weights, offsets, *_ = types
        self._check(*types)
        inner = weights.shape[2 if self.transposed else 1] if weights.ndim == 3 else None
        if inner != x.shape[1] or offsets.shape[0] != weights.shape[0] + 1:
            raise TypeError(f"grouped_dot: x {x}, weights {weights} and offsets {offsets} do not fit")
        rows, _, columns, _ = self._sizes(x, weights)
        return (ArrayType((rows, columns), self.dtype or x.dtype),)

    def flops(self, *types: ArrayType) -> float:
        rows, inner, columns, _ = self._sizes(*types[:2])
        return 2.0 * rows * inner * columns

    def _unscaled_factors(self, *types: ArrayType) -> FactorRule:
        rows, inner, columns, groups = self._sizes(*types[:2])
        matrix = ((_COLUMNS,), (_INNER,)) if self.transposed else ((_INNER,), (_COLUMNS,))
        return FactorRule(
            (((_ROWS,), (_INNER,)), ((_GROUPS,), *matrix), ((_OFFSETS,),)),
            (((_ROWS,), (_COLUMNS,)),),
            (rows, inner, columns, groups, groups + 1),
            {_INNER: SUM, _GROUPS: SUM},
            need_replication=frozenset({_OFFSETS}),
        )

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, weights, offsets, *scales = operands
        starts = context.offset(0, I32, 1), context.offset(0, I32, 0)
        return self(x, weights, _local_offsets(offsets, weights.type.shape[0], *starts), *scales)

    def plain(self, *operands: Operand) -> list[Any]:
        x, weights, offsets, *scales = operands
        masked = masked_rows(x, offsets)
        return [self._product(masked, weights, (0, 2), (0, 2 if self.transposed else 1), scales)]

    def gradient(
        self, operands: Sequence[Operand], results: Sequence[Operand], cotangents: Sequence[Operand]
    ) -> Sequence[Any]:
        (x, weights, offsets), (ct,) = operands, cotangents
        (x_ct,) = GroupedDot(transposed=not self.transposed)(ct, weights, offsets)
        (weights_ct,) = GroupedOuter()(ct, x, offsets) if self.transposed else GroupedOuter()(x, ct, offsets)
        return [x_ct, weights_ct, None]

    def _tiles(self, *types: ArrayType) -> tuple[int, int, int]:
        rows, inner, columns, groups = self._sizes(*types[:2])
        dtype = types[0].dtype
        return _tile(-(-rows // groups)), _depth(inner, dtype), _tile(columns, _LARGEST_WIDTH[dtype.itemsize])

    def kernel_launch(self, *types: ArrayType) -> Launch:
        rows, _, columns, groups = self._sizes(*types[:2])
        height, _, width = self._tiles(*types)
        row_tiles = -(-rows // height) + groups + 1  # each group, and the rows before and after, may have a part of one
        programs, stages = row_tiles * -(-columns // width), _STAGES[types[0].dtype.itemsize]
        return Launch(programs, _warps(height, width), self.out_types(*types), stages=stages)

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        rows, inner, columns, groups = self._sizes(*types[:2])
        height, depth, width = self._tiles(*types)
        x, weights, offsets, *scales, result = kernel.pointers
        column_tiles = -(-columns // width)
        program = kernel.program_id()
        tile, first_column = program // column_tiles, program % column_tiles * width
        group, start, end, found = _find_tile(kernel, offsets, tile, height, rows, groups)
        in_group = (group >= 0) & (group < groups)
        group = kernel.where(in_group, group, 0)
        row = kernel.range(height).expand(1)
        column = kernel.range(width).expand(0) + first_column
        k = kernel.range(depth)
        row_mask = row < end - start
        column_mask = None if columns % width == 0 else column < columns
        source = x.advance(start.to(I64) * inner)
        matrix = weights.advance(group.to(I64) * (inner * columns))

        def add(first: Block, total: Block) -> list[Block]:
            left, right = k.expand(0) + first, k.expand(1) + first
            k_masks = [None if inner % depth == 0 else index < inner for index in (left, right)]
            offset = column * inner + right if self.transposed else right * columns + column
            a = kernel.load(source, row * inner + left, _both(row_mask, k_masks[0]))
            b = kernel.load(matrix, offset, _both(column_mask, k_masks[1]))
            return [kernel.dot(a, b, total, split_accumulator=self.split_accumulator)]

        limit = kernel.where(in_group, kernel.full((), inner, I32), 0)
        (total,) = kernel.loop(limit, depth, [kernel.full((height, width), 0.0, F32)], add)
        mask = _both(row_mask & found, column_mask)
        scaled = self._scaled(kernel, total, scales)
        kernel.store(result.advance(start.to(I64) * columns), row * columns + column, scaled, mask)


def _both(x: Block | None, y: Block | None) -> Block | None:
    return y if x is None else x if y is None else x & y


def _find_tile(
    kernel: TritonBuilder, offsets: Pointer, tile: Block, height: int, rows: int, groups: int
) -> tuple[Block, Block, Block, Block]:
    """Return the group of a tile of rows, its first row, the end of the group, and whether there is such a tile.

    Tiles are counted group by group. The rows before the first and after the last group are groups -1 and `groups`.
    """

    def offset(index: Block) -> Block:
        bound = kernel.load(offsets.advance(index.to(I64)), kernel.full((), 0, I32))
        return kernel.minimum(kernel.maximum(bound, 0), rows)

    def visit(number: Block, before: Block, group: Block, start: Block, end: Block, found: Block) -> list[Block]:
        first = kernel.where(number.equals(0), kernel.full((), 0, I32), offset(kernel.maximum(number - 1, 0)))
        last = kernel.where(number > groups, kernel.full((), rows, I32), offset(kernel.minimum(number, groups)))
        count = (kernel.maximum(last - first, 0) + (height - 1)) // height
        is_here = (before <= tile) & (tile < before + count)
        return [
            before + count,
            kernel.where(is_here, number - 1, group),
            kernel.where(is_here, first + (tile - before) * height, start),
            kernel.where(is_here, last, end),
            is_here | found,
        ]

    zeros = [kernel.full((), 0, I32) for _ in range(4)]
    start = [*zeros, kernel.full((), False, np.dtype(np.bool_))]
    _, group, first, end, found = kernel.loop(groups + 2, 1, start, visit)
    return group, first, end, found


@final
@record
class GroupedOuter(Grouped):
    """(x [M, K], y [M, N], offsets) → [G, K, N], or (x [K, M], y [N, M], offsets, two scales), which are float8."""

    name = "grouped_outer"

    def _row_major(self, pair: Sequence[Any]) -> tuple[Any, ...]:
        """Exchange the two dims of an operand if operands are transposed."""
        return tuple(pair if self.dtype is None else reversed(pair))

    def _shapes(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        """Return (M, K), (M, N) and (G + 1,)."""
        return *(self._row_major(type.shape) for type in types[:2]), types[2].shape

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, y, offsets, *_ = types
        self._check(*types)
        if y.ndim != 2 or not offsets.shape[0] or self._row_major(x.shape)[0] != self._row_major(y.shape)[0]:
            raise TypeError(f"grouped_outer: x {x}, y {y} and offsets {offsets} do not fit")
        (_, inner), (_, columns), (count,) = self._shapes(*types)
        return (ArrayType((count - 1, inner, columns), self.dtype or x.dtype),)

    def flops(self, *types: ArrayType) -> float:
        return 2.0 * types[0].size * self._shapes(*types)[1][1]

    def _unscaled_factors(self, *types: ArrayType) -> FactorRule:
        (rows, inner), (_, columns), (count,) = self._shapes(*types)
        sides: tuple[Any, ...] = (((_ROWS,), (_INNER,)), ((_ROWS,), (_COLUMNS,)))
        return FactorRule(
            (*(self._row_major(dims) for dims in sides), ((_OFFSETS,),)),
            (((_GROUPS,), (_INNER,), (_COLUMNS,)),),
            (rows, inner, columns, count - 1, count),
            {_ROWS: SUM},
            need_replication=frozenset({_OFFSETS}),
        )

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, y, offsets, *scales = operands
        starts = context.offset(0, I32), context.offset(0 if self.dtype is None else 1, I32, 0)
        return self(x, y, _local_offsets(offsets, context.out_shapes[0][0], *starts), *scales)

    def plain(self, *operands: Operand) -> list[Any]:
        x, y, offsets, *scales = operands
        if self.dtype is not None:
            x, y = permute(x, (1, 0)), permute(y, (1, 0))
        mask = _in_group(offsets, x.type.shape[0])
        in_any = apply(Sum((0,)), Expr(Convert(I32)(mask.array))) != 0
        y = where(Expr(Broadcast(y.type.shape, (0,))(in_any.array)), Expr(y), 0.0).array
        return [self._product(masked_rows(x, offsets), y, (1,), (0,), scales)]

    def gradient(
        self, operands: Sequence[Operand], results: Sequence[Operand], cotangents: Sequence[Operand]
    ) -> Sequence[Any]:
        (x, y, offsets), (ct,) = operands, cotangents
        return [GroupedDot(transposed=True)(y, ct, offsets)[0], GroupedDot()(x, ct, offsets)[0], None]

    def _tiles(self, *types: ArrayType) -> tuple[int, int, int]:
        dtype, (_, inner, columns) = types[0].dtype, self.out_types(*types)[0].shape
        return _tile(inner), _LARGEST_DEPTH[dtype.itemsize], _tile(columns, _LARGEST_WIDTH[dtype.itemsize])

    def kernel_launch(self, *types: ArrayType) -> Launch:
        groups, inner, columns = self.out_types(*types)[0].shape
        height, _, width = self._tiles(*types)
        programs, stages = groups * -(-inner // height) * -(-columns // width), _STAGES[types[0].dtype.itemsize]
        return Launch(programs, _warps(height, width), self.out_types(*types), stages=stages)

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        inner, columns = self.out_types(*types)[0].shape[1:]
        rows = self._shapes(*types)[0][0]
        height, _, width = self._tiles(*types)
        x, y, offsets, *scales, result = kernel.pointers
        column_tiles, row_tiles = -(-columns // width), -(-inner // height)
        program = kernel.program_id()
        group, tile = program // (row_tiles * column_tiles), program % (row_tiles * column_tiles)
        zero = kernel.full((), 0, I32)
        start, end = (
            kernel.minimum(kernel.maximum(kernel.load(offsets.advance((group + i).to(I64)), zero), 0), rows)
            for i in (0, 1)
        )
        row = kernel.range(height) + tile // column_tiles * height
        column = (kernel.range(width) + tile % column_tiles * width).expand(0)
        sum_group = self._sum_rows if self.dtype is None else self._sum_adjacent
        total = self._scaled(kernel, sum_group(kernel, (x, y), (row, column), (start, end), *types), scales)
        row_mask = None if inner % height == 0 else row.expand(1) < inner
        mask = _both(row_mask, None if columns % width == 0 else column < columns)
        kernel.store(result.advance(group.to(I64) * (inner * columns)), row.expand(1) * columns + column, total, mask)

    def _sum_rows(
        self,
        kernel: TritonBuilder,
        operands: tuple[Pointer, Pointer],
        tile: tuple[Block, Block],
        group: tuple[Block, Block],
        *types: ArrayType,
    ) -> Block:
        """Return the sum over the rows of a group, of a tile of the result. Rows are not adjacent in memory."""
        inner, columns = self.out_types(*types)[0].shape[1:]
        height, depth, width = self._tiles(*types)
        (row, column), (start, end) = tile, group
        row_mask = None if inner % height == 0 else row.expand(0) < inner
        column_mask = None if columns % width == 0 else column < columns
        k = kernel.range(depth).expand(1)
        x, y = operands[0].advance(start.to(I64) * inner), operands[1].advance(start.to(I64) * columns)

        def add(first: Block, total: Block) -> list[Block]:
            index = k + first
            in_group = index < end - start
            a = kernel.load(x, index * inner + row.expand(0), _both(in_group, row_mask))
            b = kernel.load(y, index * columns + column, _both(in_group, column_mask))
            return [kernel.dot(a.transpose((1, 0)), b, total)]

        (total,) = kernel.loop(end - start, depth, [kernel.full((height, width), 0.0, F32)], add)
        return total

    def _sum_adjacent(
        self,
        kernel: TritonBuilder,
        operands: tuple[Pointer, Pointer],
        tile: tuple[Block, Block],
        group: tuple[Block, Block],
        *types: ArrayType,
    ) -> Block:
        """Return the sum over the rows of a group, of a tile of the result. Rows are adjacent in memory.

        Copies of many bytes need aligned addresses, and groups may start anywhere. So the rows are read in aligned
        steps, and those of the first and the last step that are not of the group are replaced by zeros.
        """
        inner, columns = self.out_types(*types)[0].shape[1:]
        rows = self._shapes(*types)[0][0]
        height, depth, width = self._tiles(*types)
        (row, column), (start, end) = tile, group
        row_mask = None if inner % height == 0 else row.expand(1) < inner
        column_mask = None if columns % width == 0 else column < columns
        k = kernel.range(depth)
        first, last = (start + (depth - 1)) // depth * depth, end // depth * depth  # the full steps

        def product(index: Block, total: Block, in_bounds: Block | None, in_group: Block | None) -> list[Block]:
            sides = []
            for operand, side, mask, axis in (
                (operands[0], row.expand(1), row_mask, 0),
                (operands[1], column, column_mask, 1),
            ):
                bounds = None if in_bounds is None else in_bounds.expand(axis)
                numbers = kernel.load(operand, side * rows + index.expand(axis), _both(bounds, mask))
                sides.append(numbers if in_group is None else kernel.where(in_group.expand(axis), numbers, 0.0))
            return [kernel.dot(sides[0], sides[1], total, split_accumulator=self.split_accumulator)]

        def add_edge(number: Block, total: Block) -> list[Block]:
            index = k + kernel.where(number.equals(0), start // depth * depth, last)
            in_bounds = None if rows % depth == 0 else index < rows
            return product(index, total, in_bounds, (start <= index) & (index < end))

        def add(step: Block, total: Block) -> list[Block]:
            return product(k + step, total, None, None)

        (total,) = kernel.loop(last, depth, [kernel.full((height, width), 0.0, F32)], add, first)
        has_first = (start < first) & (start < end)
        has_last = (last < end) & (first <= last)
        one = kernel.full((), 1, I32)
        edges = kernel.where(has_first, 0, one), kernel.where(has_last, 2, one)
        (total,) = kernel.loop(edges[1], 1, [total], add_edge, edges[0])
        return total
