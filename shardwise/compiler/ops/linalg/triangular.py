"""Cholesky decompositions, and solvers for triangular and tridiagonal matrices."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.base.lazy import lazy_module
from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal, known
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import INEXACT
from shardwise.compiler.ops.elementwise.expr import Expr
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
from shardwise.compiler.ops.linalg.lapack import (
    lapack_call,
    mask_triangle,
    nan_on_failure,
    numpy_nan_unless,
    numpy_routine,
    perturbed_tridiagonal_solve,
    routine_name,
)
from shardwise.compiler.ops.linalg.xla_linalg import char_attribute
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Pad

scipy = lazy_module("scipy")  # importing scipy.linalg takes 280 ms, and only `reference` needs it


@final
@record
class Cholesky(BatchedMatrixOp):
    """Cholesky decomposition `a = L L*`: the lower triangular L with a positive diagonal.

    The operand must be Hermitian, and only its lower triangle is read. Its tangent must be Hermitian too. The result is
    NaN for a matrix that is not positive definite.
    """

    name = "cholesky"
    square = True
    is_checked = True

    def out_type(self, a: ArrayType) -> ArrayType:
        self.batch_shape(a)
        return a.strong()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Solve for dL.

        L⁻¹ dA L⁻* is the sum of L⁻¹ dL and its adjoint, so L⁻¹ dL is its lower triangle, with half of the diagonal.
        """
        (a,), (da,) = primals, tangents
        factor = self(a)
        from_left = TriangularSolve(left_side=True, is_lower=True)
        from_right = TriangularSolve(left_side=False, is_lower=True, transpose_a=True, conjugate_a=True)
        lower = lower_triangle(from_left(factor, from_right(factor, da)))
        half_diagonal = Expr(diagonal_part(lower)) * 0.5
        return factor, batched_matmul(factor, lower - half_diagonal.array)

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        factor, info = lapack_call(
            hlo,
            "potrf",
            (a,),
            (a.type.strong(), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            uplo=char_attribute("L"),
        )
        (factor,) = nan_on_failure(hlo, info, factor)
        return mask_triangle(hlo, factor, "GE")

    def reference_one(self, a: NumpyArray) -> NumpyArray:
        factor, info = numpy_routine("potrf", a.dtype)(a, lower=1, clean=1)
        (factor,) = numpy_nan_unless(info == 0, factor)
        return np.tril(factor)


@final
@record
class TriangularSolve(BatchedMatrixOp):
    """Solve `op(a) x = b`, or `x op(a) = b` without `left_side`, for a triangular matrix `a`.

    `op` transposes `a` with `transpose_a` and conjugates it with `conjugate_a`. Only the triangle of `a` that
    `is_lower` selects is read. With `unit_diagonal`, the diagonal is not read and is assumed to be 1. Floats narrower
    than f32 are solved in f32.
    """

    name = "triangular_solve"
    core_ranks = (2, 2)
    accepts = INEXACT
    square = True
    overwritten = 1
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
            raise TypeError(f"triangular_solve: a of type {a} needs b with {a.shape[-1]} {side}, not {b}")
        if a.dtype != b.dtype:
            raise TypeError(f"triangular_solve: operands must have one dtype, not {a} and {b}")
        return b.strong()

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        right_side = db
        if da is not None:
            da = self._apply_op(self._mask_unread(da))
            da_x = batched_matmul(da, x) if self.left_side else batched_matmul(x, da)
            right_side = (-Expr(da_x) if db is None else Expr(db) - Expr(da_x)).array
        return x, self(a, right_side)

    def _mask_unread(self, a: Operand) -> Any:
        """Set the elements of `a` that are not read to zero."""
        offset = int(self.unit_diagonal)
        return lower_triangle(a, -offset) if self.is_lower else upper_triangle(a, offset)

    def _apply_op(self, a: Operand) -> Any:
        a = matrix_transpose(a) if self.transpose_a else a
        return conjugate(a) if self.conjugate_a else a

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return None, replace(self, transpose_a=not self.transpose_a)(operands[0], cotangent)

    def lower_nonempty(self, hlo: Hlo, a: HloValue, b: HloValue) -> Any:
        out = self.out_type(a.type, b.type)
        wide = numpy_carrier(out.dtype)
        if wide != out.dtype:
            a, b = (hlo.op("stablehlo.convert", (y,), y.type.with_dtype(wide)) for y in (a, b))
        if self.conjugate_a and not self.transpose_a and wide.kind == "c":
            a = hlo.op("chlo.conj", (a,), a.type)  # the routine conjugates only when it also transposes
        (x,) = lapack_call(
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
        return x if wide == out.dtype else hlo.op("stablehlo.convert", (x,), out)

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
    """Solve `a x = b` for a tridiagonal matrix `a`, given its subdiagonal, diagonal and superdiagonal.

    Row i of `a` has lower[i] left of diagonal[i] and upper[i] right of it; lower[0] and upper[-1] are not read. The
    result is NaN for a singular matrix; with `perturbs`, tiny pivots are perturbed, and the result is finite.
    """

    name = "tridiagonal_solve"
    core_ranks = (1, 1, 1, 2)
    overwritten = 3
    is_checked = True
    perturbs: bool = False

    @property
    def independent_dim(self) -> tuple[int, int]:
        return 3, -1

    def out_type(self, lower: ArrayType, diagonal: ArrayType, upper: ArrayType, b: ArrayType) -> ArrayType:
        self.batch_shape(lower, diagonal, upper, b)
        if len({lower.shape[-1], diagonal.shape[-1], upper.shape[-1], b.shape[-2]}) != 1:
            raise TypeError(
                "tridiagonal_solve: the diagonals need as many elements as b has rows, "
                f"not {lower}, {diagonal}, {upper} and {b}"
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
        *diagonal_tangents, right_side = tangents
        x = self(*primals)
        for tangent, shift in zip(diagonal_tangents, (1, 0, -1), strict=True):
            if tangent is not None:
                term = -scale_rows(_shift(x, x.type.ndim - 2, shift), tangent)
                right_side = add_tangents(right_side, term)
        return x, self(*diagonals, right_side)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        lower, diagonal, upper = map(known, operands[:3])
        last = lower.type.ndim - 1
        b_cotangent = self(_shift(upper, last, 1), diagonal, _shift(lower, last, -1), cotangent)
        return None, None, None, b_cotangent

    def lower_nonempty(self, hlo: Hlo, *operands: HloValue) -> Any:
        *diagonals, b = operands
        batch = b.type.ndim - 2
        if self.perturbs:
            return perturbed_tridiagonal_solve(hlo, operands, b.type.strong(), batch)
        types = [*(x.type.strong() for x in operands), ArrayType(b.type.shape[:batch], np.int32)]
        *_, x, info = lapack_call(hlo, "gtsv", (*diagonals, b), types, batch, tuple((i, i) for i in range(4)))
        return nan_on_failure(hlo, info, x)[0]

    def reference_one(self, lower: NumpyArray, diagonal: NumpyArray, upper: NumpyArray, b: NumpyArray) -> NumpyArray:
        if self.perturbs:
            return _solve_perturbed(lower, diagonal, upper, b)
        if diagonal.size == 1:
            return np.asarray(np.where(diagonal == 0, np.nan, b / diagonal))
        *_, x, info = numpy_routine("gtsv", b.dtype)(lower[1:], diagonal, upper[:-1], b)
        return np.asarray(numpy_nan_unless(info == 0, x)[0])


def _solve_perturbed(lower: NumpyArray, diagonal: NumpyArray, upper: NumpyArray, b: NumpyArray) -> NumpyArray:
    """Solve a tridiagonal system by elimination with row exchanges; pivots below eps · max |U| are replaced by it."""
    size = diagonal.size
    rows = np.diag(diagonal) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    x = np.array(b)
    for step in range(size - 1):
        if abs(rows[step + 1, step]) > abs(rows[step, step]):
            rows[[step, step + 1]], x[[step, step + 1]] = rows[[step + 1, step]], x[[step + 1, step]]
        if rows[step, step] != 0:
            factor = rows[step + 1, step] / rows[step, step]
            rows[step + 1] -= factor * rows[step]
            x[step + 1] -= factor * x[step]
    limits = np.finfo(rows.real.dtype)
    least = max(limits.eps * np.abs(np.triu(rows)).max(), limits.tiny)
    for step in reversed(range(size)):
        pivot = rows[step, step]
        if abs(pivot) < least:
            pivot = least if pivot.real >= 0 else -least
        x[step] = (x[step] - rows[step, step + 1 :] @ x[step + 1 :]) / pivot
    return x


def _shift(x: Operand, dim: int, by: int) -> Any:
    """Shift the elements by `by` positions along `dim`, and fill with 0."""
    if not by or not x.type.shape[dim]:
        return x
    low, high = [0] * x.type.ndim, [0] * x.type.ndim
    low[dim], high[dim] = by, -by
    return Pad(tuple(low), tuple(high), (0,) * len(low))(x, full((), 0, x.type.dtype, x.type.weak))


def solve_cholesky(factor: Operand, b: Operand) -> Any:
    """Solve `a x = b`, given the lower Cholesky factor of `a`."""
    from_left = TriangularSolve(left_side=True, is_lower=True)
    return replace(from_left, transpose_a=True, conjugate_a=True)(factor, from_left(factor, b))


def symmetrize(a: Operand) -> Any:
    """Return the mean of each matrix and its adjoint."""
    return ((Expr(a) + Expr(adjoint(a))) * 0.5).array
