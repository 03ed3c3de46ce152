"""quantize: an array of floats as float8 numbers and a scale, with its largest magnitude, in one pass over memory.

    x [batch…, rows…, columns…], scale [] → x / scale as float8, optionally with the columns before the rows, the
    largest magnitude of x, and optionally the sums of x over the rows

Numbers beyond the range of the float8 dtype become its largest or least number. Infinities and NaN become NaN, and the
largest magnitude leaves them out. Along sharded dims, it is a partial maximum.

With a prologue, x is an elementwise function of the operands before the scale, and is not stored. The sums are the
gradient of a bias, if x is the cotangent of a product.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from functools import reduce
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_float8
from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.prologue import apply_prologue, emit_prologue
from shardwise.compiler.kernels.triton_ir import F32, I32, I64, Block, Pointer, TritonBuilder
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import permute
from shardwise.compiler.reduction import MAX
from shardwise.compiler.shardings.factors import FactorRule

_TILE = 64, 64  # rows and columns of one program
# The same where a transpose is written. Rows of 128 bytes are written at once, and columns of 64; more rows would need
# too many registers for prologues of several operands.
_LARGE_TILE = 64, 128
_LEAST_PROGRAMS = 256  # fewer large blocks would leave multiprocessors of a GPU without work
_WARPS = 8
_WORD = 4  # float8 numbers per word of 32 bits


@final
@record
class Quantize(KernelOp):
    """(x, scale) → float8 numbers, optionally the same with columns before rows, and the largest magnitude of x.

    Attributes:
        dtype: the float8 dtype.
        transposes: whether the second result exists.
        batch: the number of leading dims of `x` that are batch dims.
        rows: the number of dims after them that are rows. The rest are columns.
        prologue: a function of single elements that computes those of x; None if x is an operand. The first operand
            has the shape of x.
        dims: for each operand of the prologue, the dims of x that it has: all, the rows (with batch dims), the columns
            or none.
        sums: whether the sums over the rows are the last result, as float32.
        updates: whether the largest magnitude is at least the last operand, f32[], whose buffer it reuses.
    """

    name = "quantize"
    dtype: DType
    transposes: bool = False
    batch: int = 0
    rows: int = 1
    prologue: Program | None = field(default=None, repr=False)
    dims: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    sums: bool = field(default=False, repr=False)
    updates: bool = field(default=False, repr=False)

    @property
    def programs(self) -> tuple[Program, ...]:
        return () if self.prologue is None else (self.prologue,)

    def with_programs(self, programs: Sequence[Program]) -> "Quantize":
        return replace(self, prologue=programs[0])

    @property
    def label(self) -> str:
        if self.prologue is None:
            return self.name
        count = sum(not equation.op.is_constant for equation in self.prologue.equations)
        return f"{self.name} after {count} elementwise op{'s' * (count != 1)}"

    @property
    def limit(self) -> float:
        """The largest number of the float8 dtype."""
        return float(ml_dtypes.finfo(self.dtype).max)  # type: ignore[no-untyped-call]

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        operands, (scale, *largest) = self._split(types)
        x = operands[0]
        if not all(is_float(type.dtype) for type in operands) or not is_float8(self.dtype):
            raise TypeError(f"quantize: needs floats and a float8 dtype, not {x} and {self.dtype}")
        if scale.shape or scale.dtype != F32:
            raise TypeError(f"quantize: the scale must be f32[], not {scale}")
        if largest != [ArrayType((), F32)] * self.updates:
            raise TypeError(f"quantize: the largest magnitude must be f32[], not {largest}")
        if self.batch + self.rows > x.ndim:
            raise TypeError(f"quantize: {x} does not have {self.batch} batch dims and {self.rows} dims of rows")
        self._check_operands(operands)
        result = ArrayType(x.shape, self.dtype)
        transposed = result.with_shape(tuple(x.shape[dim] for dim in self._order(x.ndim)))
        sums = ArrayType((*x.shape[: self.batch], *x.shape[self.batch + self.rows :]), F32)
        return result, *([transposed] if self.transposes else []), ArrayType((), F32), *([sums] if self.sums else [])

    def _split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the operands of the prologue, or x, and the others."""
        count = len(operands) - 1 - self.updates
        return list(operands[:count]), list(operands[count:])

    def _check_operands(self, operands: Sequence[ArrayType]) -> None:
        """Raise TypeError if the operands do not belong to the prologue."""
        x, start = operands[0], self.batch + self.rows
        dims = self._operand_dims(x)
        known = (tuple(range(x.ndim)), tuple(range(start)), tuple(range(start, x.ndim)), ())
        elements = tuple(ArrayType((), type.dtype) for type in operands)
        expected = elements[:1] if self.prologue is None else self.prologue.in_types
        if elements != expected or len(dims) != len(operands) or dims[0] != known[0] or not {*dims} <= {*known}:
            raise TypeError(f"quantize: {', '.join(map(str, operands))} do not belong to the prologue {self.prologue}")
        for type, each in zip(operands, dims, strict=True):
            if type.shape != tuple(x.shape[dim] for dim in each):
                raise TypeError(f"quantize: {type} does not have dims {each} of {x}")

    def _operand_dims(self, x: ArrayType) -> tuple[tuple[int, ...], ...]:
        return self.dims or (tuple(range(x.ndim)),)

    def _order(self, ndim: int) -> tuple[int, ...]:
        """Return the dims of `x` with the columns before the rows."""
        start = self.batch + self.rows
        return (*range(self.batch), *range(start, ndim), *range(self.batch, start))

    def _summed(self) -> range:
        """Return the dims of `x` that are rows."""
        return range(self.batch, self.batch + self.rows)

    def factors(self, *types: ArrayType) -> FactorRule:
        ndim = types[0].ndim
        dims = tuple((dim,) for dim in range(ndim))
        transposed = tuple((dim,) for dim in self._order(ndim))
        summed = frozenset(self._summed() if self.sums else ())
        # A factor has one reduction, and the rows of sums would need two. A function of padding may be any number, and
        # prologues are made after layouts are chosen.
        replicated = summed if self.prologue is None else frozenset(range(ndim))
        sums = tuple((dim,) for dim in range(ndim) if dim not in summed)
        results = (dims, *([transposed] if self.transposes else []), (), *([sums] if self.sums else []))
        operands = (*(tuple((dim,) for dim in each) for each in self._operand_dims(types[0])), (), *[()] * self.updates)
        reduced = {dim: MAX for dim in range(ndim) if dim not in summed}
        return FactorRule(operands, results, types[0].shape, reduced, need_replication=replicated)

    def plain(self, *operands: Any) -> list[Any]:
        arrays, (scale, *start) = self._split(operands)
        shape, ndim = arrays[0].type.shape, arrays[0].type.ndim
        full = [
            x if x.type.shape == shape else Broadcast(shape, dims)(x)
            for x, dims in zip(arrays, self._operand_dims(arrays[0].type), strict=True)
        ]
        x = full[0] if self.prologue is None else apply_prologue(self.prologue, full)
        wide = Expr(x if x.type.dtype == F32 else Convert(F32)(x))
        magnitude = apply(Abs(), wide)
        is_finite = magnitude < np.inf
        scaled = wide * Expr(Broadcast(shape, ())((1.0 / Expr(scale)).array))
        clamped = apply(Max(), apply(Min(), scaled, scaled.full_like(self.limit)), scaled.full_like(-self.limit))
        # XLA replaces a conversion to float8 and back by nothing, unless there is a barrier between the two.
        result = Barrier()(Convert(self.dtype)(where(is_finite, clamped, np.nan).array))
        largest = ReduceMax(tuple(range(ndim)))(where(is_finite, magnitude, 0.0).array)
        if start:
            largest = Max()(largest, start[0])
        transposed = [permute(result, self._order(ndim))] if self.transposes else []
        return [result, *transposed, largest, *([Sum(tuple(self._summed()))(wide.array)] if self.sums else [])]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise TypeError(
            "quantize: rounding to float8 has no derivative. A product of an FP8Policy has first derivatives only: "
            "compute second ones with the function that was not transformed."
        )

    def kernel_launch(self, *types: ArrayType) -> Launch:
        count, rows, columns = self._sizes(types[0])
        height, width = self._tile(types[0])
        programs = count * _blocks(rows, height) * _blocks(columns, width)
        results = self.out_types(*types)[: 1 + self.transposes]
        shape, start = types[0].shape, self.batch + self.rows
        parts = ArrayType((*shape[: self.batch], _blocks(rows, height), *shape[start:]), F32)
        maxima = ArrayType(() if self.updates else (programs,), F32)
        written = ((len(results), len(types) - 1),) if self.updates else ()
        return Launch(programs, _WARPS, (*results, maxima, *([parts] if self.sums else [])), written=written)

    def _tile(self, x: ArrayType) -> tuple[int, int]:
        """Return the numbers of rows and of columns of a block."""
        count, rows, columns = self._sizes(x)
        height, width = _LARGE_TILE
        programs = count * _blocks(rows, height) * _blocks(columns, width)
        return _LARGE_TILE if self.transposes and programs >= _LEAST_PROGRAMS else _TILE

    def _sizes(self, x: ArrayType) -> tuple[int, int, int]:
        """Return the numbers of matrices, of rows and of columns."""
        start = self.batch + self.rows
        parts = (x.shape[: self.batch], x.shape[self.batch : start], x.shape[start:])
        count, rows, columns = (int(np.prod(part, dtype=np.int64)) for part in parts)
        return count, rows, columns

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        x, ndim = types[0], types[0].ndim
        operands, (scale, *_) = self._split(kernel.pointers[: len(types)])
        results = kernel.pointers[len(types) :]
        tile = _Tile(kernel, self._sizes(x), self._tile(x), self._offset_dtype(x), self._rows_per_word(x))
        dims = self._operand_dims(x)
        loaded = [tile.load(array, self._kind(each, ndim)) for array, each in zip(operands, dims, strict=True)]
        values = []
        for blocks, mask in zip(zip(*loaded, strict=True), tile.masks, strict=True):
            value = blocks[0].to(F32) if self.prologue is None else emit_prologue(kernel, self.prologue, blocks)
            if mask is not None and self.prologue is not None:
                value = kernel.where(mask, value, 0.0)  # a function of zeros may be another number
            values.append(value)
        finite = [value * 0.0 + value for value in values]  # infinities become NaN
        inverse = kernel.full((), 1.0, F32) / kernel.load(scale, kernel.full((), 0, I32))
        scaled = [value * inverse for value in finite]
        if len(scaled) > 1:
            words = kernel.pack_float8(scaled, self.dtype)
            tile.store(results.pop(0), [kernel.word_byte(words, index) for index in range(_WORD)])
            tile.store_transposed_words(results.pop(0), words)
        else:
            # NaN stays NaN: it is the result of a zero and the scale zero, or of a scale that is NaN.
            clamped = kernel.binary("arith.maximumf", scaled[0], -self.limit, F32)
            numbers = kernel.binary("arith.minimumf", clamped, self.limit, F32).to(self.dtype)
            tile.store(results.pop(0), [numbers])
            if self.transposes:
                tile.store_transposed(results.pop(0), numbers)
        magnitude = reduce(kernel.maximum, map(kernel.abs, finite)).max(1).max(0)
        largest = kernel.maximum(magnitude, 0.0)  # it is NaN if there is no other number
        if self.updates:  # floats that are not negative have the order of their bits
            bits = kernel.bitcast(largest, I32)
            kernel.atomic("max", results.pop(0).bitcast(I32), kernel.full((), 0, I32), bits, order="relaxed")
        else:
            kernel.store(results.pop(0).advance(tile.program.to(I64)), kernel.full((), 0, I32), largest)
        if self.sums:
            tile.store_sums(results.pop(0), reduce(Block.__add__, values))

    def _rows_per_word(self, x: ArrayType) -> int:
        """Return how many rows a program computes as one block each, whose numbers it stores as words.

        Numbers of adjacent rows are adjacent in the transpose. Bytes of different threads would have to be exchanged
        one by one, which takes longer than the memory does.
        """
        return _WORD if self.transposes and self._sizes(x)[1] % _WORD == 0 else 1

    def _offset_dtype(self, x: ArrayType) -> DType:
        """Return the dtype of rows, columns and offsets in a block. Rows of a block may be far from each other."""
        _, rows, columns = self._sizes(x)
        height, width = self._tile(x)
        furthest = max(height * columns + width, width * rows + height)
        return I32 if furthest < 2**31 else I64

    def _kind(self, dims: tuple[int, ...], ndim: int) -> str:
        """Return which dims of x an operand has. One of a single column can have several names."""
        if len(dims) == ndim:
            return "all"
        if not dims:
            return "none"
        return "columns" if dims[0] == self.batch + self.rows else "rows"

    def finish(self, hlo: Hlo, written: Sequence[HloValue]) -> Sequence[HloValue]:
        *results, maxima = written[: 2 + self.transposes]
        largest = maxima if self.updates else ReduceMax((0,)).lower(hlo, maxima)
        sums = [Sum((self.batch,)).lower(hlo, written[-1])] if self.sums else []
        return [*results, largest, *sums]


@final
class _Tile:
    """The rows and columns of one program, in one block or in several, which have every n-th row.

    Attributes:
        program: the index of the program.
        masks: for each block, which of its elements exist; None for all.
    """

    def __init__(
        self,
        kernel: TritonBuilder,
        sizes: tuple[int, int, int],
        shape: tuple[int, int],
        offset: DType,
        count: int,
    ):
        """Describe the tile.

        Args:
            kernel: the kernel.
            sizes: the numbers of matrices, of rows and of columns.
            shape: the numbers of rows and of columns of a tile.
            offset: the dtype of offsets from the first element.
            count: the number of blocks.
        """
        _, rows, columns = sizes
        height, width = shape
        self._kernel, self._rows, self._columns, self._count = kernel, rows, columns, count
        self.program = kernel.program_id()
        down, across = _blocks(rows, height), _blocks(columns, width)
        self._block = self.program // across  # of rows, of all matrices
        self._matrix = (self._block // down).to(I64)
        self._first_word = (self._block % down).to(I64) * (height // count)
        self._first_row = self._first_word * count
        self._first_column = (self.program % across).to(I64) * width
        self._word = kernel.range(height // count).to(offset).expand(1)
        self._row = [self._word * count + index for index in range(count)]
        self._column = kernel.range(width).to(offset).expand(0)
        first_row, first_column = self._first_row.to(offset), self._first_column.to(offset)
        self._column_mask = self._column + first_column < columns if columns % width else None
        self._row_masks = [row + first_row < rows if rows % height else None for row in self._row]
        self.masks = [
            row & self._column_mask if row and self._column_mask else row or self._column_mask
            for row in self._row_masks
        ]

    @property
    def _start(self) -> Block:
        """The offset of the first element. Offsets in the tile are added to its address, since they fit 32 bits."""
        first = self._matrix * (self._rows * self._columns) + self._first_row * self._columns
        return first + self._first_column

    def load(self, array: Pointer, kind: str) -> list[Block]:
        """Load the elements of each block, of an array that has "all" dims, those of "rows", of "columns" or "none"."""
        load, shape = self._kernel.load, (self._word.shape[0], self._column.shape[1])
        if kind == "all":
            address = array.advance(self._start)
            offsets = [row * self._columns + self._column for row in self._row]
            return [load(address, each, mask) for each, mask in zip(offsets, self.masks, strict=True)]
        if kind == "rows":
            address = array.advance(self._matrix * self._rows + self._first_row)
            loaded = [load(address, row, mask) for row, mask in zip(self._row, self._row_masks, strict=True)]
        elif kind == "columns":
            loaded = [load(array.advance(self._first_column), self._column, self._column_mask)] * self._count
        else:
            loaded = [load(array, self._kernel.full((), 0, I32))] * self._count
        return [each.broadcast_to(shape) for each in loaded]

    def store(self, array: Pointer, blocks: Sequence[Block]) -> None:
        """Store blocks of an array, or of its bytes."""
        array = array if blocks[0].dtype == array.dtype else array.bitcast(blocks[0].dtype)
        address = array.advance(self._start)
        for row, block, mask in zip(self._row, blocks, self.masks, strict=True):
            self._kernel.store(address, row * self._columns + self._column, block, mask)

    def store_transposed(self, array: Pointer, block: Block) -> None:
        """Store the only block with columns before rows."""
        first = self._matrix * (self._rows * self._columns) + self._first_column * self._rows + self._first_row
        self._kernel.store(array.advance(first), self._column * self._rows + self._row[0], block, self.masks[0])

    def store_transposed_words(self, array: Pointer, words: Block) -> None:
        """Store words, with the elements of all blocks, with columns before rows."""
        rows = self._rows // self._count  # a word exists if its first row does: the number of rows is a multiple
        first = self._matrix * (rows * self._columns) + self._first_column * rows + self._first_word
        address = array.bitcast(words.dtype).advance(first)
        self._kernel.store(address, self._column * rows + self._word, words, self.masks[0])

    def store_sums(self, array: Pointer, total: Block) -> None:
        """Store the sums of the columns of the tile, as one row of an array."""
        address = array.advance(self._block.to(I64) * self._columns + self._first_column)
        self._kernel.store(address, self._column, total.sum(0).expand(0), self._column_mask)


def _blocks(size: int, tile: int) -> int:
    return -(-size // tile)
