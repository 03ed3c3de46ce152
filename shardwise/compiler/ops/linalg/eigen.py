"""Eigenvalues and eigenvectors: eigh of Hermitian matrices, eig of any."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Div, Mul, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Complex, Conj, Imag, Real
from shardwise.compiler.ops.elementwise.select import Compare, Select, complex_part_type
from shardwise.compiler.ops.linalg.batched import (
    INDEX,
    BatchedMatrixOp,
    adjoint,
    as_dtype,
    batched_matmul,
    conjugate,
    diagonal,
    real_part,
    row_column_mask,
    scale_columns,
)
from shardwise.compiler.ops.linalg.cusolver import char_attribute
from shardwise.compiler.ops.linalg.lapack import lapack_call, nan_on_failure, numpy_nan_unless, numpy_routine
from shardwise.compiler.ops.linalg.lu import solve
from shardwise.compiler.ops.reduce.argminmax import Argmax
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota


def reciprocal_differences(values: Any) -> Any:
    """In row i and column j one over the difference of the j-th number and the i-th, and 0 on the diagonal. Where two
    are equal that is infinite: their vectors are arbitrary, and have no derivative."""
    shape = (*values.type.shape, values.type.shape[-1])
    batch = tuple(range(len(shape) - 2))
    of_row = Broadcast(shape, (*batch, len(shape) - 2))(values)
    of_column = Broadcast(shape, (*batch, len(shape) - 1))(values)
    gap = Sub()(of_column, of_row)
    own = row_column_mask(shape, "EQ")
    return Select()(own, zeros_like(gap), Div()(full_like(gap, 1), Select()(own, full_like(gap, 1), gap)))


@final
@record
class Eigh(BatchedMatrixOp):
    """The orthonormal eigenvectors of Hermitian matrices, as columns, and their eigenvalues, in ascending order.

    Of the values only one triangle is read; a tangent is taken as Hermitian.
    """

    name = "eigh"
    single = False
    square = True
    is_lower: bool = True

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        self.batch_shape(a)
        values = complex_part_type(a) if a.dtype.kind == "c" else a
        return a.strong(), values.with_shape(a.shape[:-1]).strong()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """In the basis of the eigenvectors, dA is what the values move by on the diagonal; elsewhere, shared by the
        differences of the values, it is how the vectors turn into each other."""
        (a,), (da,) = primals, tangents
        vectors, values = self(a)
        inner = batched_matmul(adjoint(vectors), batched_matmul(da, vectors))
        turn = Mul()(inner, as_dtype(reciprocal_differences(values), inner.type.dtype))
        return (vectors, values), (batched_matmul(vectors, turn), real_part(diagonal(inner)))

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        vectors, values, failed = lapack_call(
            hlo,
            "syevd",
            (a,),
            (*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            mode=char_attribute("V"),
            uplo=char_attribute("L" if self.is_lower else "U"),
        )
        return nan_on_failure(hlo, failed, vectors, values)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        values, vectors, failed = numpy_routine("syevd", a.dtype)(a, lower=self.is_lower)
        return numpy_nan_unless(failed == 0, vectors, values)


@final
@record
class Eig(BatchedMatrixOp):
    """The eigenvalues of matrices, and of what `left` and `right` say the eigenvectors as columns, all complex. Left
    ones are those of the adjoint. A vector has the norm 1, and its largest element is real.

    `differentiable`: the user vouches for eigenvalues that are all different, and for what becomes of the vectors to
    depend neither on their norm nor on their phase. Without it only eigenvalues have derivatives.
    """

    name = "eig"
    single = False
    square = True
    left: bool
    right: bool
    differentiable: bool = False

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        self.batch_shape(a)
        dtype = a.dtype if a.dtype.kind == "c" else np.result_type(a.dtype, np.complex64)
        vectors = ArrayType(a.shape, dtype)
        return ArrayType(a.shape[:-1], dtype), *[vectors] * (self.left + self.right)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if (self.left or self.right) and not self.differentiable:
            raise NotImplementedError(
                "eig: eigenvectors of a matrix that is not Hermitian have derivatives only where its eigenvalues all "
                "differ, and where norm and phase of the vectors do not matter; pass enable_eigvec_derivs=True to "
                "`lax.linalg.eig` where that is so, or use `eigh` for Hermitian matrices"
            )
        (a,), (da,) = primals, tangents
        results = self(a)
        values, *vectors = results
        da = as_dtype(da, values.type.dtype)
        right = vectors[-1] if self.right else replace(self, left=False, right=True)(a)[1]
        moved = [diagonal(solve(right, batched_matmul(da, right)))]
        if self.left:
            moved.append(_turned(vectors[0], Conj()(values), adjoint(da)))
        if self.right:
            moved.append(_turned(right, values, da))
        return results, moved

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        out = self.out_types(a.type)[0]
        vectors = out.with_shape(a.type.shape)
        parts = [out] if a.type.dtype.kind == "c" else [complex_part_type(out)] * 2
        *values, left, right, failed = lapack_call(
            hlo,
            "geev",
            (a,),
            (*parts, vectors, vectors, ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            compute_left=char_attribute("V" if self.left else "N"),
            compute_right=char_attribute("V" if self.right else "N"),
        )
        found = values[0] if len(values) == 1 else hlo.op("stablehlo.complex", values, out)
        return nan_on_failure(hlo, failed, found, *[left] * self.left, *[right] * self.right)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        *parts, left, right, failed = numpy_routine("geev", a.dtype)(a, compute_vl=self.left, compute_vr=self.right)
        values = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
        if len(parts) == 2:
            left, right = (_joined(x, parts[1]) for x in (left, right))
        return numpy_nan_unless(failed == 0, values, *[left] * self.left, *[right] * self.right)


def _turned(vectors: Any, values: Any, da: Any) -> Any:
    """How eigenvectors move: those of other values come in, and its own so much that the norm stays 1 and the largest
    element real."""
    inner = solve(vectors, batched_matmul(da, vectors))
    moved = batched_matmul(vectors, Mul()(inner, reciprocal_differences(values)))
    rows = vectors.type.ndim - 2
    along = Real()(Sum((rows,))(Mul()(conjugate(vectors), moved)))
    moved = Sub()(moved, scale_columns(vectors, along))
    largest = Argmax(rows, INDEX)(Abs()(vectors))
    shape = vectors.type.shape
    spread = Broadcast(shape, (*range(rows), rows + 1))(largest)
    here = Compare("EQ")(Iota(shape, rows, INDEX)(), spread)
    one, turned = (Sum((rows,))(Select()(here, x, zeros_like(x))) for x in (vectors, moved))
    angle = Imag()(Div()(turned, one))
    return Sub()(moved, scale_columns(vectors, Complex()(zeros_like(angle), angle)))


def _joined(vectors: NumpyArray, imaginary: NumpyArray) -> NumpyArray:
    """Vectors as LAPACK gives those of a real matrix: of a conjugated pair the real and the imaginary part."""
    if vectors.shape[0] != imaginary.size:  # none were asked for
        return vectors
    found = vectors.astype(np.result_type(vectors.dtype, np.complex64))
    for column in range(imaginary.size):
        if imaginary[column] > 0:
            found[:, column] = vectors[:, column] + 1j * vectors[:, column + 1]
            found[:, column + 1] = found[:, column].conj()
    return found
