"""LU factors with row exchanges: lu and lu_pivots_to_permutation, and what is solved with them."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Sub
from shardwise.compiler.ops.elementwise.base import DtypeSet
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
    """Of each matrix its factors L and U in one matrix, and the pivots: row i was exchanged with row `pivots[i]`, for
    one i after the other. L is below the diagonal, and has ones on it.

    A singular matrix has a zero on the diagonal of U.
    """

    name = "lu"
    single = False

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        return a.strong(), ArrayType((*batch, min(a.shape[-2:])), INDEX)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Of the leading square blocks, L⁻¹ dA U⁻¹ = L⁻¹ dL + dU U⁻¹: a lower and an upper triangle. The rest of L, or
        of U, follows from its own rows or columns of dA."""
        (a,), (da,) = primals, tangents
        both, pivots = self(a)
        *_, rows, columns = a.type.shape
        size = min(rows, columns)
        da = permute_rows(da, PivotsToPermutation(rows)(pivots))
        square = submatrix(both, (0, size), (0, size))
        lower = Add()(lower_triangle(square, -1), identity(square.type.shape, a.type.dtype))
        upper = upper_triangle(square)
        by_lower = TriangularSolve(left_side=True, is_lower=True, unit_diagonal=True)
        by_upper = TriangularSolve(left_side=False, is_lower=False)
        inner = by_lower(square, by_upper(square, submatrix(da, (0, size), (0, size))))
        d_lower = batched_matmul(lower, lower_triangle(inner, -1))
        d_upper = batched_matmul(upper_triangle(inner), upper)
        moved = Add()(d_lower, d_upper)
        if rows > size:
            rest = Sub()(
                submatrix(da, (size, rows), (0, size)),
                batched_matmul(submatrix(both, (size, rows), (0, size)), d_upper),
            )
            moved = Concatenate(a.type.ndim - 2)(moved, by_upper(square, rest))
        if columns > size:
            right = (size, columns)
            rest = Sub()(submatrix(da, (0, size), right), batched_matmul(d_lower, submatrix(both, (0, size), right)))
            moved = Concatenate(a.type.ndim - 1)(moved, by_lower(square, rest))
        return (both, pivots), (moved, None)

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        types = [*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)]
        both, pivots, _ = lapack_call(hlo, "getrf", (a,), types, batch, ((0, 0),))
        one = hlo.constant(1, pivots.type)  # LAPACK counts from 1
        return both, hlo.op("stablehlo.subtract", (pivots, one), pivots.type)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        both, pivots, _ = numpy_routine("getrf", a.dtype)(a)
        return both, pivots


@final
@record
class PivotsToPermutation(BatchedMatrixOp):
    """Which row of the matrix is each of the `size` rows of `L U`, given the pivots; out of range is the nearest."""

    name = "lu_pivots_to_permutation"
    core_ranks = (1,)
    accepts = DtypeSet("i32", lambda dtype: dtype == INDEX)
    size: int

    def out_type(self, pivots: ArrayType) -> ArrayType:
        batch = self.batch_shape(pivots)
        if pivots.shape[-1] > self.size:
            raise TypeError(f"lu_pivots_to_permutation: {pivots} holds more pivots than there are rows, {self.size}")
        return ArrayType((*batch, self.size), INDEX)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower_nonempty(self, hlo: Hlo, pivots: Any) -> Any:
        out = self.out_type(pivots.type)
        last = out.ndim - 1
        place = Iota(out.shape, last, INDEX).lower(hlo)
        if not pivots.type.size:
            return place
        scalar = ArrayType((), INDEX)
        zero, one, count = (hlo.constant(number, scalar) for number in (0, 1, pivots.type.shape[-1]))
        last_row = hlo.constant(self.size - 1, scalar)
        pivots = hlo.op("stablehlo.clamp", (zero, pivots, last_row), pivots.type)
        taken = DynamicSlice((*pivots.type.shape[:-1], 1))
        spread = Broadcast(out.shape, tuple(range(last)))

        def goes_on(at: Sequence[Any]) -> Any:
            return Compare("LT").lower(hlo, at[0], count)

        def step(at: Sequence[Any]) -> list[Any]:
            """Exchange two elements of each row: found by comparing, as each row has a place of its own."""
            number, rows = at
            pivot = taken.lower(hlo, pivots, *[zero] * last, number)
            pivot = spread.lower(hlo, Reshape(out.shape[:-1]).lower(hlo, pivot))
            here = Compare("EQ").lower(hlo, place, Broadcast(out.shape, ()).lower(hlo, number))
            there = Compare("EQ").lower(hlo, place, pivot)
            nothing = hlo.constant(0, out)
            mine, other = (
                spread.lower(hlo, Sum((last,)).lower(hlo, Select().lower(hlo, where, rows, nothing)))
                for where in (here, there)
            )
            rows = Select().lower(hlo, here, other, Select().lower(hlo, there, mine, rows))
            return [Add().lower(hlo, number, one), rows]

        return hlo.loop([zero, place], goes_on, step)[1]

    def reference_one(self, pivots: NumpyArray) -> NumpyArray:
        rows = np.arange(self.size, dtype=INDEX)
        for number, pivot in enumerate(np.clip(pivots, 0, self.size - 1)):
            rows[[number, pivot]] = rows[[pivot, number]]
        return rows


def permute_rows(x: Any, places: Any) -> Any:
    """Of each matrix the rows in the order `places`."""
    return permute_along(x, places, x.type.ndim - 2)


def solve(a: Any, b: Any) -> Any:
    """The x of `a x = b`, for each pair of matrices of two stacks with the same batch."""
    both, pivots = Lu()(a)
    return solve_factored(both, PivotsToPermutation(a.type.shape[-1])(pivots), b)


def solve_factored(both: Any, permutation: Any, b: Any) -> Any:
    """The x of `a x = b`, given what `Lu` makes of a."""
    by_lower = TriangularSolve(left_side=True, is_lower=True, unit_diagonal=True)
    by_upper = TriangularSolve(left_side=True, is_lower=False)
    return by_upper(both, by_lower(both, permute_rows(b, permutation)))
