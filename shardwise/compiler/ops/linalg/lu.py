"""LU decompositions with partial pivoting: lu, lu_pivots_to_permutation, and solvers that use them."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.base import DtypeSet
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.linalg.batched import (
    INDEX,
    BatchedMatrixOp,
    batched_matmul,
    identity,
    lower_triangle,
    permute_along,
    submatrix,
    upper_triangle,
)
from shardwise.compiler.ops.linalg.lapack import lapack_call, numpy_routine
from shardwise.compiler.ops.linalg.triangular import TriangularSolve
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate


@final
@record
class Lu(BatchedMatrixOp):
    """LU decomposition with partial pivoting: L and U packed in one matrix, and the pivots.

    L is below the diagonal; its diagonal of ones is not stored. Step i of the elimination swaps row i with row
    `pivots[i]`. If the matrix is singular, the diagonal of U has a zero.
    """

    name = "lu"
    single = False

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        return a.strong(), ArrayType((*batch, min(a.shape[-2:])), INDEX)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Solve for dL and dU.

        For the leading square blocks, L⁻¹ dA U⁻¹ = L⁻¹ dL + dU U⁻¹ is the sum of a strictly lower triangle and an upper
        triangle. The other rows of L, or columns of U, follow from the corresponding rows or columns of dA.
        """
        (a,), (da,) = primals, tangents
        packed, pivots = self(a)
        *_, rows, columns = a.type.shape
        size = min(rows, columns)
        da = permute_rows(da, PivotsToPermutation(rows)(pivots))
        square = submatrix(packed, (0, size), (0, size))
        lower = lower_triangle(square, -1) + identity(square.type.shape, a.type.dtype)
        upper = upper_triangle(square)
        solve_lower = TriangularSolve(left_side=True, is_lower=True, unit_diagonal=True)
        solve_upper = TriangularSolve(left_side=False, is_lower=False)
        inner = solve_lower(square, solve_upper(square, submatrix(da, (0, size), (0, size))))
        d_lower = batched_matmul(lower, lower_triangle(inner, -1))
        d_upper = batched_matmul(upper_triangle(inner), upper)
        tangent = d_lower + d_upper
        if rows > size:
            below = (size, rows), (0, size)
            rest = Expr(submatrix(da, *below)) - Expr(batched_matmul(submatrix(packed, *below), d_upper))
            tangent = Concatenate(a.type.ndim - 2)(tangent, solve_upper(square, rest.array))
        if columns > size:
            right = (0, size), (size, columns)
            rest = Expr(submatrix(da, *right)) - Expr(batched_matmul(d_lower, submatrix(packed, *right)))
            tangent = Concatenate(a.type.ndim - 1)(tangent, solve_lower(square, rest.array))
        return (packed, pivots), (tangent, None)

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        types = [*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)]
        packed, pivots, _ = lapack_call(hlo, "getrf", (a,), types, batch, ((0, 0),))
        one = hlo.constant(1, pivots.type)  # LAPACK counts from 1
        return packed, hlo.op("stablehlo.subtract", (pivots, one), pivots.type)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        packed, pivots, _ = numpy_routine("getrf", a.dtype)(a)
        return packed, pivots


@final
@record
class PivotsToPermutation(BatchedMatrixOp):
    """Convert the pivots of an LU decomposition to a permutation: row i of `L U` is row `permutation[i]` of the matrix.

    There are `size` rows. Pivots that are out of range are clamped.
    """

    name = "lu_pivots_to_permutation"
    core_ranks = (1,)
    accepts = DtypeSet("i32", lambda dtype: dtype == INDEX)
    size: int

    def out_type(self, pivots: ArrayType) -> ArrayType:
        batch = self.batch_shape(pivots)
        if pivots.shape[-1] > self.size:
            raise TypeError(f"lu_pivots_to_permutation: there are more pivots, {pivots}, than rows, {self.size}")
        return ArrayType((*batch, self.size), INDEX)

    def loops_on_cpu(self, *types: ArrayType) -> bool:
        return True  # over the pivots

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower_nonempty(self, hlo: Hlo, pivots: HloValue) -> Any:
        out = self.out_type(pivots.type)
        last = out.ndim - 1
        index = Iota(out.shape, last, INDEX).lower(hlo)
        if not pivots.type.size:
            return index
        scalar = ArrayType((), INDEX)
        zero, one, count = (hlo.constant(number, scalar) for number in (0, 1, pivots.type.shape[-1]))
        last_row = hlo.constant(self.size - 1, scalar)
        pivots = hlo.op("stablehlo.clamp", (zero, pivots, last_row), pivots.type)
        slice_pivot = DynamicSlice((*pivots.type.shape[:-1], 1))
        broadcast = Broadcast(out.shape, tuple(range(last)))

        def has_more_pivots(state: Sequence[Any]) -> Any:
            return Compare("LT").lower(hlo, state[0], count)

        def swap_rows(state: Sequence[Any]) -> list[Any]:
            """Swap rows `step` and `pivots[step]`, with masks, because each batch element has its own pivot."""
            step, rows = state
            pivot = slice_pivot.lower(hlo, pivots, *[zero] * last, step)
            pivot = broadcast.lower(hlo, Reshape(out.shape[:-1]).lower(hlo, pivot))
            is_step = Compare("EQ").lower(hlo, index, Broadcast(out.shape, ()).lower(hlo, step))
            is_pivot = Compare("EQ").lower(hlo, index, pivot)
            zeros = hlo.constant(0, out)
            step_row, pivot_row = (
                broadcast.lower(hlo, Sum((last,)).lower(hlo, Select().lower(hlo, mask, rows, zeros)))
                for mask in (is_step, is_pivot)
            )
            rows = Select().lower(hlo, is_step, pivot_row, Select().lower(hlo, is_pivot, step_row, rows))
            return [Add().lower(hlo, step, one), rows]

        return hlo.loop([zero, index], has_more_pivots, swap_rows)[1]

    def reference_one(self, pivots: NumpyArray) -> NumpyArray:
        rows = np.arange(self.size, dtype=INDEX)
        for step, pivot in enumerate(np.clip(pivots, 0, self.size - 1)):
            rows[[step, pivot]] = rows[[pivot, step]]
        return rows


def permute_rows(x: Operand, permutation: Operand) -> Any:
    """Permute the rows of each matrix: row i of the result is row `permutation[i]` of `x`."""
    return permute_along(x, permutation, x.type.ndim - 2)


def solve(a: Operand, b: Operand) -> Any:
    """Solve `a x = b` for matrices `a` and `b` with the same batch dims."""
    packed, pivots = Lu()(a)
    return solve_factored(packed, PivotsToPermutation(a.type.shape[-1])(pivots), b)


def solve_factored(packed: Operand, permutation: Operand, b: Operand) -> Any:
    """Solve `a x = b`, given the packed LU decomposition of `a` and its row permutation."""
    solve_lower = TriangularSolve(left_side=True, is_lower=True, unit_diagonal=True)
    solve_upper = TriangularSolve(left_side=True, is_lower=False)
    return solve_upper(packed, solve_lower(packed, permute_rows(b, permutation)))
