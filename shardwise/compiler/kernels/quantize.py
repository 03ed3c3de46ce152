"""quantize: an array of floats as float8 numbers and a scale, with its largest magnitude, in one pass over memory.

    x [batch…, rows…, columns…], scale [] → x / scale as float8, optionally with the columns before the rows, and the
    largest magnitude of x

Numbers beyond the range of the float8 dtype become its largest or least number. Infinities and NaN become NaN, and the
largest magnitude leaves them out. Along sharded dims, it is a partial maximum.
"""

from collections.abc import Sequence
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_float8
from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import F32, I32, I64, TritonBuilder
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.shape.movement import permute
from shardwise.compiler.reduction import MAX
from shardwise.compiler.shardings.factors import FactorRule

_TILE = 64  # rows and columns of the block of one program
_LARGE_TILE = 128  # the same where a transpose is written: rows of 128 bytes, which a GPU writes at once
_LEAST_PROGRAMS = 256  # fewer large blocks would leave multiprocessors of a GPU without work
_WARPS = 8


@final
@record
class Quantize(KernelOp):
    """(x, scale) → float8 numbers, optionally the same with columns before rows, and the largest magnitude of x.

    Attributes:
        dtype: the float8 dtype.
        transposes: whether the second result exists.
        batch: the number of leading dims of `x` that are batch dims.
        rows: the number of dims after them that are rows. The rest are columns.
    """

    name = "quantize"
    dtype: DType
    transposes: bool = False
    batch: int = 0
    rows: int = 1

    @property
    def limit(self) -> float:
        """The largest number of the float8 dtype."""
        return float(ml_dtypes.finfo(self.dtype).max)  # type: ignore[no-untyped-call]

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, scale = types
        if not is_float(x.dtype) or not is_float8(self.dtype):
            raise TypeError(f"quantize: needs floats and a float8 dtype, not {x} and {self.dtype}")
        if scale.shape or scale.dtype != F32:
            raise TypeError(f"quantize: the scale must be f32[], not {scale}")
        if self.batch + self.rows > x.ndim:
            raise TypeError(f"quantize: {x} does not have {self.batch} batch dims and {self.rows} dims of rows")
        result = ArrayType(x.shape, self.dtype)
        transposed = result.with_shape(tuple(x.shape[dim] for dim in self._order(x.ndim)))
        return result, *([transposed] if self.transposes else []), ArrayType((), F32)

    def _order(self, ndim: int) -> tuple[int, ...]:
        """Return the dims of `x` with the columns before the rows."""
        start = self.batch + self.rows
        return (*range(self.batch), *range(start, ndim), *range(self.batch, start))

    def factors(self, *types: ArrayType) -> FactorRule:
        ndim = types[0].ndim
        dims = tuple((dim,) for dim in range(ndim))
        transposed = tuple((dim,) for dim in self._order(ndim))
        results = (dims, *([transposed] if self.transposes else []), ())
        return FactorRule((dims, ()), results, types[0].shape, dict.fromkeys(range(ndim), MAX))

    def plain(self, *operands: Any) -> list[Any]:
        x, scale = operands
        wide = Expr(x if x.type.dtype == F32 else Convert(F32)(x))
        magnitude = apply(Abs(), wide)
        is_finite = magnitude < np.inf
        scaled = wide * Expr(Broadcast(x.type.shape, ())((1.0 / Expr(scale)).array))
        clamped = apply(Max(), apply(Min(), scaled, scaled.full_like(self.limit)), scaled.full_like(-self.limit))
        # XLA replaces a conversion to float8 and back by nothing, unless there is a barrier between the two.
        result = Barrier()(Convert(self.dtype)(where(is_finite, clamped, np.nan).array))
        largest = ReduceMax(tuple(range(x.type.ndim)))(where(is_finite, magnitude, 0.0).array)
        transposed = [permute(result, self._order(x.type.ndim))] if self.transposes else []
        return [result, *transposed, largest]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise TypeError(
            "quantize: rounding to float8 has no derivative. A product of an FP8Policy has first derivatives only: "
            "compute second ones with the function that was not transformed."
        )

    def kernel_launch(self, *types: ArrayType) -> Launch:
        count, rows, columns = self._sizes(types[0])
        tile = self._tile(types[0])
        programs = count * _blocks(rows, tile) * _blocks(columns, tile)
        *results, _ = self.out_types(*types)
        return Launch(programs, _WARPS, (*results, ArrayType((programs,), F32)))

    def _tile(self, x: ArrayType) -> int:
        """Return the number of rows and of columns of a block."""
        count, rows, columns = self._sizes(x)
        programs = count * _blocks(rows, _LARGE_TILE) * _blocks(columns, _LARGE_TILE)
        return _LARGE_TILE if self.transposes and programs >= _LEAST_PROGRAMS else _TILE

    def _sizes(self, x: ArrayType) -> tuple[int, int, int]:
        """Return the numbers of matrices, of rows and of columns."""
        start = self.batch + self.rows
        parts = (x.shape[: self.batch], x.shape[self.batch : start], x.shape[start:])
        count, rows, columns = (int(np.prod(part, dtype=np.int64)) for part in parts)
        return count, rows, columns

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        _, rows, columns = self._sizes(types[0])
        tile = self._tile(types[0])
        x, scale, *results, maxima = kernel.pointers
        program = kernel.program_id()
        across = _blocks(columns, tile)
        block = program // across
        first_row, first_column = (block % _blocks(rows, tile)) * tile, (program % across) * tile
        matrix = (block // _blocks(rows, tile)).to(I64) * (rows * columns)
        row, column = kernel.range(tile).expand(1), kernel.range(tile).expand(0)
        mask = None
        if rows % tile or columns % tile:
            mask = (row + first_row < rows) & (column + first_column < columns)
        start = matrix + first_row.to(I64) * columns + first_column.to(I64)
        value = kernel.load(x.advance(start), row * columns + column, mask).to(F32)
        magnitude = kernel.abs(value)
        is_finite = magnitude < np.inf
        scaled = value * (kernel.full((), 1.0, F32) / kernel.load(scale, kernel.full((), 0, I32)))
        clamped = kernel.minimum(kernel.maximum(scaled, -self.limit), self.limit)
        numbers = kernel.where(is_finite, clamped, np.nan).to(self.dtype)
        kernel.store(results[0].advance(start), row * columns + column, numbers, mask)
        if self.transposes:
            transposed = matrix + first_column.to(I64) * rows + first_row.to(I64)
            kernel.store(results[1].advance(transposed), column * rows + row, numbers, mask)
        largest = kernel.where(is_finite, magnitude, 0.0).max(1).max(0)
        kernel.store(maxima.advance(program.to(I64)), kernel.full((), 0, I32), largest)

    def finish(self, hlo: Hlo, written: Sequence[HloValue]) -> Sequence[HloValue]:
        *results, maxima = written
        return [*results, ReduceMax((0,)).lower(hlo, maxima)]


def _blocks(size: int, tile: int) -> int:
    return -(-size // tile)
