"""Eigendecompositions: eigh of Hermitian matrices, eig of general ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Complex, Conj, Imag, Real
from shardwise.compiler.ops.elementwise.expr import Expr, where
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
from shardwise.compiler.ops.linalg.lapack import lapack_call, nan_on_failure, numpy_nan_unless, numpy_routine
from shardwise.compiler.ops.linalg.lu import solve
from shardwise.compiler.ops.linalg.xla_linalg import char_attribute
from shardwise.compiler.ops.reduce.argminmax import Argmax
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota


def reciprocal_differences(values: Operand) -> Any:
    """Return the matrices with 1 / (values[j] - values[i]) in row i and column j, and 0 on the diagonal.

    The reciprocal is infinite for two equal eigenvalues, whose eigenvectors are arbitrary and have no derivative.
    """
    shape = (*values.type.shape, values.type.shape[-1])
    batch = tuple(range(len(shape) - 2))
    row_values = Broadcast(shape, (*batch, len(shape) - 2))(values)
    column_values = Broadcast(shape, (*batch, len(shape) - 1))(values)
    difference = Expr(column_values) - Expr(row_values)
    on_diagonal = Expr(row_column_mask(shape, "EQ"))
    one = difference.full_like(1)
    return where(on_diagonal, 0, one / where(on_diagonal, one, difference)).array


@final
@record
class Eigh(BatchedMatrixOp):
    """Eigendecomposition of Hermitian matrices: orthonormal eigenvectors as columns, and ascending eigenvalues.

    Only the lower triangle of the operand is read (or the upper one, without `is_lower`). Tangents must be Hermitian.
    """

    name = "eigh"
    single = False
    square = True
    is_checked = True
    is_lower: bool = True

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        self.batch_shape(a)
        values = complex_part_type(a) if a.dtype.kind == "c" else a
        return a.strong(), values.with_shape(a.shape[:-1]).strong()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Apply first-order perturbation theory, with dP = V* dA V.

        The tangents of the eigenvalues are the diagonal of dP. The tangents of the eigenvectors are V (F ∘ dP), where F
        holds the reciprocal differences of the eigenvalues.
        """
        (a,), (da,) = primals, tangents
        vectors, values = self(a)
        dp = batched_matmul(adjoint(vectors), batched_matmul(da, vectors))
        rotation = dp * as_dtype(reciprocal_differences(values), dp.type.dtype)
        return (vectors, values), (batched_matmul(vectors, rotation), real_part(diagonal(dp)))

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        vectors, values, info = lapack_call(
            hlo,
            "syevd",
            (a,),
            (*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            mode=char_attribute("V"),
            uplo=char_attribute("L" if self.is_lower else "U"),
        )
        return nan_on_failure(hlo, info, vectors, values)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        values, vectors, info = numpy_routine("syevd", a.dtype)(a, lower=self.is_lower)
        return numpy_nan_unless(info == 0, vectors, values)


@final
@record
class Eig(BatchedMatrixOp):
    """Eigendecomposition of general matrices: eigenvalues, then left and right eigenvectors as columns, if requested.

    All results are complex. Left eigenvectors are the eigenvectors of the adjoint. An eigenvector has norm 1, and its
    largest element is real.

    `differentiable` is the user's promise that the eigenvalues are distinct and that the function of the eigenvectors
    depends neither on their norms nor on their phases. Without it, only the eigenvalues have derivatives.
    """

    name = "eig"
    single = False
    square = True
    is_checked = True
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
                "eig: eigenvectors of a general matrix have derivatives only if its eigenvalues are distinct and the "
                "result depends neither on the norms nor on the phases of the eigenvectors; if so, pass "
                "enable_eigvec_derivs=True to `lax.linalg.eig`, or use `eigh` for Hermitian matrices"
            )
        (a,), (da,) = primals, tangents
        results = self(a)
        values, *vectors = results
        da = as_dtype(da, values.type.dtype)
        right = vectors[-1] if self.right else replace(self, left=False, right=True)(a)[1]
        out_tangents = [diagonal(solve(right, batched_matmul(da, right)))]
        if self.left:
            out_tangents.append(_eigenvector_tangent(vectors[0], Conj()(values), adjoint(da)))
        if self.right:
            out_tangents.append(_eigenvector_tangent(right, values, da))
        return results, out_tangents

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        out = self.out_types(a.type)[0]
        vectors = out.with_shape(a.type.shape)
        parts = [out] if a.type.dtype.kind == "c" else [complex_part_type(out)] * 2
        *values, left, right, info = lapack_call(
            hlo,
            "geev",
            (a,),
            (*parts, vectors, vectors, ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            compute_left=char_attribute("V" if self.left else "N"),
            compute_right=char_attribute("V" if self.right else "N"),
        )
        eigenvalues = values[0] if len(values) == 1 else hlo.op("stablehlo.complex", values, out)
        return nan_on_failure(hlo, info, eigenvalues, *[left] * self.left, *[right] * self.right)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        *parts, left, right, info = numpy_routine("geev", a.dtype)(a, compute_vl=self.left, compute_vr=self.right)
        values = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
        if len(parts) == 2:
            left, right = (_complex_eigenvectors(x, parts[1]) for x in (left, right))
        return numpy_nan_unless(info == 0, values, *[left] * self.left, *[right] * self.right)


def _eigenvector_tangent(vectors: Operand, values: Operand, da: Operand) -> Any:
    """Return the tangent of eigenvectors that keep the norm 1 and a real largest element."""
    inner = solve(vectors, batched_matmul(da, vectors))
    tangent = batched_matmul(vectors, inner * reciprocal_differences(values))
    rows = vectors.type.ndim - 2
    norm_change = Real()(Sum((rows,))(conjugate(vectors) * tangent))
    tangent = tangent - scale_columns(vectors, norm_change)
    shape = vectors.type.shape
    largest_row = Broadcast(shape, (*range(rows), rows + 1))(Argmax((rows,), INDEX)(Abs()(vectors)))
    is_largest = Compare("EQ")(Iota(shape, rows, INDEX)(), largest_row)
    largest, largest_tangent = (Sum((rows,))(Select()(is_largest, x, zeros_like(x))) for x in (vectors, tangent))
    phase_change = Imag()(largest_tangent / largest)
    return tangent - scale_columns(vectors, Complex()(zeros_like(phase_change), phase_change))


def _complex_eigenvectors(vectors: NumpyArray, imaginary: NumpyArray) -> NumpyArray:
    """Combine LAPACK's eigenvectors of a real matrix, which store a conjugate pair as its real and imaginary part.

    `imaginary` holds the imaginary parts of the eigenvalues.
    """
    if vectors.shape[0] != imaginary.size:  # eigenvectors were not requested
        return vectors
    result = vectors.astype(np.result_type(vectors.dtype, np.complex64))
    for column in range(imaginary.size):
        if imaginary[column] > 0:
            result[:, column] = vectors[:, column] + 1j * vectors[:, column + 1]
            result[:, column + 1] = result[:, column].conj()
    return result
