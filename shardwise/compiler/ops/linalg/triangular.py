"""Triangular and tridiagonal matrices: cholesky, triangular_solve and tridiagonal_solve."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.base import INEXACT, full_like
from shardwise.compiler.ops.linalg.batched import (
    BatchedMatrixOp,
    adjoint,
    batched_matmul,
    conjugate,
    diagonal_part,
    lower_triangle,
    matrix_transpose,
    scale_rows,
    upper_triangle,
)
from shardwise.compiler.ops.linalg.cusolver import char_attribute
from shardwise.compiler.ops.linalg.lapack import (
    lapack_call,
    mask_triangle,
    nan_on_failure,
    numpy_nan_unless,
    numpy_routine,
    routine_name,
)
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Pad
from shardwise.lazy import lazy_module

scipy = lazy_module("scipy")


@final
@record
class Cholesky(BatchedMatrixOp):
    """The lower triangular matrix with a positive diagonal whose product with its adjoint is the operand.

    The operand is taken as Hermitian, and so is its tangent: of the values only the lower triangle is read. Where it is
    not positive definite, the result is NaN.
    """

    name = "cholesky"
    square = True

    def out_type(self, a: ArrayType) -> ArrayType:
        self.batch_shape(a)
        return a.strong()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Of A = L L*, L⁻¹ dA L⁻* = L⁻¹ dL + its adjoint: the first is the lower half, with half of the diagonal."""
        (a,), (da,) = primals, tangents
        factor = self(a)
        from_left = TriangularSolve(left_side=True, is_lower=True)
        from_right = TriangularSolve(left_side=False, is_lower=True, transpose_a=True, conjugate_a=True)
        both = lower_triangle(from_left(factor, from_right(factor, da)))
        half = Sub()(both, Mul()(diagonal_part(both), full_like(both, 0.5)))
        return factor, batched_matmul(factor, half)

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        found, failed = lapack_call(
            hlo,
            "potrf",
            (a,),
            (a.type.strong(), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            uplo=char_attribute("L"),
        )
        (found,) = nan_on_failure(hlo, failed, found)
        return mask_triangle(hlo, found, "GE")

    def reference_one(self, a: NumpyArray) -> NumpyArray:
        found, failed = numpy_routine("potrf", a.dtype)(a, lower=1, clean=1)
        (found,) = numpy_nan_unless(failed == 0, found)
        return np.tril(found)


@final
@record
class TriangularSolve(BatchedMatrixOp):
    """The x of `op(a) x = b`; of `x op(a) = b` where not `left_side`. Columns of b (else rows) are solved for alone.

    Only the triangle of a that `is_lower` says is read, and not its diagonal where `unit_diagonal`: ones count there.
    op: a itself, its transpose, its conjugate, or both. Small floats are solved for in f32.
    """

    name = "triangular_solve"
    core_ranks = (2, 2)
    accepts = INEXACT
    square = True
    left_side: bool
    is_lower: bool
    transpose_a: bool = False
    conjugate_a: bool = False
    unit_diagonal: bool = False

    @property
    def independent_dim(self) -> tuple[int, int]:
        return 1, -1 if self.left_side else -2

    def out_type(self, a: ArrayType, b: ArrayType) -> ArrayType:
        self.batch_shape(a, b)
        if b.shape[-2 if self.left_side else -1] != a.shape[-1]:
            side = "rows" if self.left_side else "columns"
            raise TypeError(f"triangular_solve: the matrices of {a} need as many {side} of b, not {b}")
        if a.dtype != b.dtype:
            raise TypeError(f"triangular_solve: operands must have one dtype, not {a} and {b}")
        return b.strong()

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        moved = db
        if da is not None:
            da = self._applied(self._read(da))
            by_a = batched_matmul(da, x) if self.left_side else batched_matmul(x, da)
            moved = Neg()(by_a) if db is None else Sub()(db, by_a)
        return x, self(a, moved)

    def _read(self, a: Any) -> Any:
        """The part of `a` that counts, with zeros elsewhere."""
        inside = int(self.unit_diagonal)
        return lower_triangle(a, -inside) if self.is_lower else upper_triangle(a, inside)

    def _applied(self, a: Any) -> Any:
        a = matrix_transpose(a) if self.transpose_a else a
        return conjugate(a) if self.conjugate_a else a

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return None, replace(self, transpose_a=not self.transpose_a)(operands[0], cotangent)

    def lower_nonempty(self, hlo: Hlo, a: Any, b: Any) -> Any:
        out = self.out_type(a.type, b.type)
        wide = numpy_carrier(out.dtype)
        if wide != out.dtype:
            a, b = (hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide)) for x in (a, b))
        if self.conjugate_a and not self.transpose_a and wide.kind == "c":
            a = hlo.op("chlo.conj", (a,), a.type)  # the routine conjugates only what it transposes
        (found,) = lapack_call(
            hlo,
            "trsm",
            (a, b),
            (b.type.strong(),),
            a.type.ndim - 2,
            ((0, 1),),
            side=char_attribute("L" if self.left_side else "R"),
            uplo=char_attribute("L" if self.is_lower else "U"),
            trans_x=char_attribute(("C" if self.conjugate_a else "T") if self.transpose_a else "N"),
            diag=char_attribute("U" if self.unit_diagonal else "N"),
        )
        return found if wide == out.dtype else hlo.op("stablehlo.convert", (found,), out)

    def reference_one(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        wide = numpy_carrier(a.dtype)
        a, b = a.astype(wide), b.astype(wide)
        if self.conjugate_a and not self.transpose_a:
            a = a.conj()
        solve = getattr(scipy.linalg.blas, routine_name("trsm", wide))
        return np.asarray(
            solve(
                1.0,
                a,
                b,
                side=not self.left_side,
                lower=self.is_lower,
                trans_a=(2 if self.conjugate_a else 1) if self.transpose_a else 0,
                diag=self.unit_diagonal,
            )
        )


@final
@record
class TridiagonalSolve(BatchedMatrixOp):
    """The x of `a x = b`, where a has `lower`, `diagonal` and `upper` beside and on its diagonal and zeros elsewhere.

    Row i of a has lower[i] left of diagonal[i] and upper[i] right of it: lower[0] and upper[-1] are not read. Where a
    is singular, the result is NaN.
    """

    name = "tridiagonal_solve"
    core_ranks = (1, 1, 1, 2)

    @property
    def independent_dim(self) -> tuple[int, int]:
        return 3, -1

    def out_type(self, lower: ArrayType, diagonal: ArrayType, upper: ArrayType, b: ArrayType) -> ArrayType:
        self.batch_shape(lower, diagonal, upper, b)
        if len({lower.shape[-1], diagonal.shape[-1], upper.shape[-1], b.shape[-2]}) != 1:
            raise TypeError(
                f"tridiagonal_solve: diagonals need as many elements as b has rows, not {lower}, {diagonal}, {upper} "
                f"and {b}"
            )
        if len({lower.dtype, diagonal.dtype, upper.dtype, b.dtype}) != 1:
            raise TypeError(
                f"tridiagonal_solve: operands must have one dtype, not {lower}, {diagonal}, {upper} and {b}"
            )
        return b.strong()

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((3,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        diagonals = primals[:3]
        *moves, db = tangents
        x = self(*primals)
        moved = db
        for move, shift in zip(moves, (1, 0, -1), strict=True):
            if move is not None:
                part = Neg()(scale_rows(_shifted(x, x.type.ndim - 2, shift), move))
                moved = part if moved is None else Add()(moved, part)
        return x, self(*diagonals, moved)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        lower, diagonal, upper, _ = operands
        last = lower.type.ndim - 1
        found = self(_shifted(upper, last, 1), diagonal, _shifted(lower, last, -1), cotangent)
        return None, None, None, found

    def lower_nonempty(self, hlo: Hlo, *operands: Any) -> Any:
        *diagonals, b = operands
        batch = b.type.ndim - 2
        types = [*(x.type.strong() for x in operands), ArrayType(b.type.shape[:batch], np.int32)]
        *_, found, failed = lapack_call(hlo, "gtsv", (*diagonals, b), types, batch, tuple((i, i) for i in range(4)))
        return nan_on_failure(hlo, failed, found)[0]

    def reference_one(self, lower: NumpyArray, diagonal: NumpyArray, upper: NumpyArray, b: NumpyArray) -> NumpyArray:
        if diagonal.size == 1:
            return np.asarray(np.where(diagonal == 0, np.nan, b / diagonal))
        *_, found, failed = numpy_routine("gtsv", b.dtype)(lower[1:], diagonal, upper[:-1], b)
        return np.asarray(numpy_nan_unless(failed == 0, found)[0])


def _shifted(x: Any, dim: int, by: int) -> Any:
    """`x` with each element moved by `by` places along `dim`; what comes in is 0."""
    if not by or not x.type.shape[dim]:
        return x
    low, high = [0] * x.type.ndim, [0] * x.type.ndim
    low[dim], high[dim] = by, -by
    return Pad(tuple(low), tuple(high), (0,) * len(low))(x, full((), 0, x.type.dtype, x.type.weak))


def solve_cholesky(factor: Any, b: Any) -> Any:
    """The x of `a x = b`, given the lower Cholesky factor of a."""
    from_left = TriangularSolve(left_side=True, is_lower=True)
    return replace(from_left, transpose_a=True, conjugate_a=True)(factor, from_left(factor, b))


def symmetrize(a: Any) -> Any:
    """The mean of each matrix and its adjoint."""
    return Mul()(Add()(a, adjoint(a)), full_like(a, 0.5))
