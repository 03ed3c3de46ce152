"""QR decompositions by Householder reflections: geqrf, householder_product, ormqr and qr.

A reflection is `I - tau v v*`. LAPACK's packed form stores the vectors v as columns below the diagonal of a matrix; the
element of v on the diagonal is 1 and is not stored.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.complex_parts import Complex
from shardwise.compiler.ops.linalg.batched import (
    INDEX,
    BatchedMatrixOp,
    adjoint,
    batched_matmul,
    diagonal_part,
    identity,
    imaginary_part,
    lower_triangle,
    permute_along,
    submatrix,
)
from shardwise.compiler.ops.linalg.lapack import lapack_call, mask_triangle, numpy_routine
from shardwise.compiler.ops.linalg.lu import solve
from shardwise.compiler.ops.linalg.triangular import TriangularSolve
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Slice


class HouseholderOp(BatchedMatrixOp):
    """An op on packed Householder reflections. It has no derivative."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> NoReturn:
        raise NotImplementedError(f"{self.name}: has no derivative; differentiate `qr`, which has one")


@final
@record
class Geqrf(HouseholderOp):
    """QR decomposition in packed form: R on and above the diagonal, reflections below it, and their taus.

    With `pivoting` it also returns the permutation of the columns for which the diagonal of R descends.
    """

    name = "geqrf"
    single = False
    pivoting: bool = False

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        order = (ArrayType((*batch, a.shape[-1]), INDEX),) if self.pivoting else ()
        return a.strong(), ArrayType((*batch, min(a.shape[-2:])), a.dtype), *order

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        types = self.out_types(a.type)
        if not a.type.size:  # columns without rows are not permuted
            order = hlo.op("stablehlo.iota", (), types[2], f"iota_dimension = {batch} : i64")
            return *(hlo.constant(0, type) for type in types[:2]), order
        if not self.pivoting:
            return tuple(lapack_call(hlo, "geqrf", (a,), types, batch, ((0, 0),)))
        free_columns = hlo.constant(0, types[2])
        packed, order, taus = lapack_call(
            hlo, "geqp3", (a, free_columns), (types[0], types[2], types[1]), batch, ((0, 0), (1, 1))
        )
        one = hlo.constant(1, order.type)  # LAPACK counts from 1
        return packed, taus, hlo.op("stablehlo.subtract", (order, one), order.type)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        if not a.size:
            return a, np.zeros(0, a.dtype), *([np.arange(a.shape[1])] if self.pivoting else [])
        if not self.pivoting:
            packed, taus, _, _ = numpy_routine("geqrf", a.dtype)(a)
            return packed, taus
        packed, order, taus, _, _ = numpy_routine("geqp3", a.dtype)(a)
        return packed, taus, order - 1


@final
@record
class HouseholderProduct(HouseholderOp):
    """The leading columns (as many as the operand has) of the product of all reflections, the first one leftmost."""

    name = "householder_product"
    core_ranks = (2, 1)

    def out_type(self, a: ArrayType, taus: ArrayType) -> ArrayType:
        _check_reflections(self, a, taus)
        if a.shape[-2] < a.shape[-1]:
            raise TypeError(f"householder_product: needs at least as many rows as columns, not {a}")
        return a.strong()

    def lower_nonempty(self, hlo: Hlo, a: HloValue, taus: HloValue) -> Any:
        (q,) = lapack_call(hlo, "orgqr", (a, taus), (a.type.strong(),), a.type.ndim - 2, ((0, 0),))
        return q

    def reference_one(self, a: NumpyArray, taus: NumpyArray) -> NumpyArray:
        if not taus.size:
            return np.eye(*a.shape, dtype=a.dtype)
        return np.asarray(numpy_routine("orgqr", a.dtype)(a, taus)[0])


@final
@record
class Ormqr(HouseholderOp):
    """Multiply `c` from the left by the product Q of all reflections; from the right without `left`.

    With `adjoint`, Q* is used in place of Q.
    """

    name = "ormqr"
    core_ranks = (2, 1, 2)
    overwritten = 2
    left: bool = True
    adjoint: bool = False

    @property
    def independent_dim(self) -> tuple[int, int]:
        return 2, -1 if self.left else -2

    def out_type(self, a: ArrayType, taus: ArrayType, c: ArrayType) -> ArrayType:
        _check_reflections(self, a, taus, c)
        if c.shape[-2 if self.left else -1] != a.shape[-2]:
            side = "rows" if self.left else "columns"
            raise TypeError(f"ormqr: reflections of size {a.shape[-2]} need c with {a.shape[-2]} {side}, not {c}")
        if c.dtype != a.dtype:
            raise TypeError(f"ormqr: operands must have one dtype, not {a} and {c}")
        return c.strong()

    def lower_nonempty(self, hlo: Hlo, a: HloValue, taus: HloValue, c: HloValue) -> Any:
        if not taus.type.size:
            return c
        options = {"left": str(self.left).lower(), "transpose": str(self.adjoint).lower()}
        (result,) = lapack_call(hlo, "ormqr", (a, taus, c), (c.type.strong(),), a.type.ndim - 2, ((0, 2),), **options)
        return result

    def reference_one(self, a: NumpyArray, taus: NumpyArray, c: NumpyArray) -> NumpyArray:
        if not taus.size:
            return c
        transpose = ("C" if a.dtype.kind == "c" else "T") if self.adjoint else "N"
        apply = numpy_routine("ormqr", a.dtype)
        a = a[:, : taus.size]
        side = "L" if self.left else "R"
        workspace_size = int(apply(side, transpose, a, taus, c, -1)[1][0].real)
        return np.asarray(apply(side, transpose, a, taus, c, workspace_size)[0])


def _check_reflections(op: BatchedMatrixOp, *types: ArrayType) -> None:
    op.batch_shape(*types)
    a, taus = types[:2]
    if taus.shape[-1] > min(a.shape[-2:]):
        raise TypeError(
            f"{op.name}: {a} holds at most {min(a.shape[-2:])} reflections per matrix, fewer than taus {taus}"
        )
    if taus.dtype != a.dtype:
        raise TypeError(f"{op.name}: operands must have one dtype, not {a} and {taus}")


@final
@record
class Qr(BatchedMatrixOp):
    """QR decomposition: Q with orthonormal columns and the upper triangular R, whose product is the operand.

    With `full`, Q is square and R is padded with rows of zeros; otherwise Q has min(rows, columns) columns. With
    `pivoting` it also returns a permutation of the columns, and Q R is the operand with its columns permuted.
    """

    name = "qr"
    single = False
    full: bool
    pivoting: bool = False

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        *_, rows, columns = a.shape
        size = rows if self.full else min(rows, columns)
        order = (ArrayType((*batch, columns), INDEX),) if self.pivoting else ()
        return ArrayType((*batch, rows, size), a.dtype), ArrayType((*batch, size, columns), a.dtype), *order

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (a,), (da,) = primals, tangents
        q, r, *order = self(a)
        if order:
            da = permute_along(da, order[0], a.type.ndim - 1)
        *_, rows, columns = a.type.shape
        size = min(rows, columns)
        dq, rotation, dr = _thin_qr_jvp(
            submatrix(q, (0, rows), (0, size)), submatrix(r, (0, size), (0, size)), submatrix(da, (0, rows), (0, size))
        )
        if columns > size:  # Q does not depend on these columns
            right = (size, columns)
            q_da = batched_matmul(adjoint(q), submatrix(da, (0, rows), right))
            rest = q_da - batched_matmul(rotation, submatrix(r, (0, rows), right))
            dr = Concatenate(a.type.ndim - 1)(dr, rest)
        if self.full and rows > size:
            dq = Concatenate(a.type.ndim - 1)(dq, _complement_jvp(q, dq, size))
            zeros = (0,) * a.type.ndim
            dr = Pad(zeros, (*zeros[:-2], rows - size, 0), zeros)(dr, full((), 0, dr.type.dtype))
        return (q, r, *order), (dq, dr, *(None for _ in order))

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        q, r, *_ = self.out_types(a.type)
        packed, taus, *order = Geqrf(self.pivoting).lower(hlo, a)
        *_, rows, columns = a.type.shape
        size = q.shape[-1]
        start, step = (0,) * a.type.ndim, (1,) * a.type.ndim
        upper = Slice(start, (*r.shape[:-2], min(rows, size), columns), step).lower(hlo, packed)
        vectors = Slice(start, (*q.shape[:-1], min(columns, size)), step).lower(hlo, packed)
        if size > columns:
            more = (*start[:-1], size - columns)
            vectors = Pad(start, more, start).lower(hlo, vectors, hlo.constant(0, ArrayType((), a.type.dtype)))
        return HouseholderProduct().lower(hlo, vectors, taus), mask_triangle(hlo, upper, "LE"), *order

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        packed, taus, *order = Geqrf(self.pivoting).reference_one(a)
        rows, columns = a.shape
        size = rows if self.full else min(rows, columns)
        vectors = np.zeros((rows, size), a.dtype)
        vectors[:, : min(columns, size)] = packed[:, : min(columns, size)]
        return HouseholderProduct().reference_one(vectors, taus), np.triu(packed)[:size], *order


def _thin_qr_jvp(q: Operand, r: Operand, da: Operand) -> tuple[Any, Any, Any]:
    """Return dQ, Q* dQ and dR of a QR decomposition with square R.

    Q* dA R⁻¹ = Q* dQ + dR R⁻¹ is the sum of an anti-Hermitian matrix and an upper triangle with a real diagonal.
    """
    x = TriangularSolve(left_side=False, is_lower=False)(r, da)
    inner = batched_matmul(adjoint(q), x)
    below = lower_triangle(inner, -1)
    rotation = below - adjoint(below)
    if inner.type.dtype.kind == "c":
        phase = imaginary_part(diagonal_part(inner))
        rotation = rotation + Complex()(zeros_like(phase), phase)
    upper = inner - rotation
    return x - batched_matmul(q, upper), rotation, batched_matmul(upper, r)


def _complement_jvp(q: Operand, dq: Operand, size: int) -> Any:
    """Return the tangent of the other columns of a full Q, given the tangent `dq` of its first `size` columns.

    The first columns of a product of reflections determine the others: with Q₁₁ = I - M, Q₂₁ = N and W the solution of
    M* W = N*, the others are M W above and I - N W below. If a reflection is the identity, M is singular, and the
    decomposition is not differentiable.
    """
    rows = q.type.shape[-1]
    above, below = (0, size), (size, rows)
    top = submatrix(q, above, above)
    m, n = identity(top.type.shape, q.type.dtype) - top, submatrix(q, below, above)
    dm, dn = -submatrix(dq, above, above), submatrix(dq, below, above)
    w = solve(adjoint(m), adjoint(n))
    dw = solve(adjoint(m), adjoint(dn) - batched_matmul(adjoint(dm), w))
    upper = batched_matmul(dm, w) + batched_matmul(m, dw)
    lower = -(batched_matmul(dn, w) + batched_matmul(n, dw))
    return Concatenate(q.type.ndim - 2)(upper, lower)
