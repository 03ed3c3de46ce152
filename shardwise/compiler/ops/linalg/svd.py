"""svd: the singular value decomposition."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.complex_parts import Complex
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.rounding import IsFinite
from shardwise.compiler.ops.elementwise.select import Compare, complex_part_type
from shardwise.compiler.ops.linalg.batched import (
    BatchedMatrixOp,
    adjoint,
    as_dtype,
    batched_matmul,
    diagonal,
    diagonal_part,
    imaginary_part,
    real_part,
    scale_columns,
    scale_rows,
)
from shardwise.compiler.ops.linalg.eigen import reciprocal_differences
from shardwise.compiler.ops.linalg.lapack import lapack_call, nan_on_failure, numpy_nan_unless, numpy_routine
from shardwise.compiler.ops.linalg.xla_linalg import char_attribute
from shardwise.compiler.ops.shape.constants import zeros_like


@final
@record
class Svd(BatchedMatrixOp):
    """Singular value decomposition `a = U diag(s) V*`: U, the descending singular values s, and V*.

    With `full`, U and V* are square; otherwise they have as many vectors as there are singular values. Without
    `vectors`, s is the only result. `routine` is LAPACK's: gesdd (divide and conquer) or gesvd (QR iteration).
    """

    name = "svd"
    overwritten = None  # LAPACK needs it as a workspace
    is_checked = True
    single = False
    full: bool = False
    vectors: bool = True
    routine: str = field(default="gesdd", repr=False)

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        *_, rows, columns = a.shape
        size = min(rows, columns)
        values = (complex_part_type(a) if a.dtype.kind == "c" else a).with_shape((*batch, size)).strong()
        if not self.vectors:
            return (values,)
        left = (*batch, rows, rows if self.full else size)
        right = (*batch, columns if self.full else size, columns)
        return ArrayType(left, a.dtype), values, ArrayType(right, a.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Apply the SVD's perturbation formulas, with dP = U* dA V.

        The tangent of s is the real diagonal of dP. Within the spaces that they span, U and V rotate by
        F ∘ (dP S + S dP*) and F ∘ (S dP + dP* S), where F has 1 / (sⱼ² - sᵢ²) in row i and column j. A tall matrix adds
        to dU the part of dA V S⁻¹ that is orthogonal to U, a wide one adds to dV the corresponding part. The phase that
        U and V share is not determined; it is assigned to U.
        """
        (a,), (da,) = primals, tangents
        *_, rows, columns = a.type.shape
        if self.vectors and self.full and rows != columns:
            raise NotImplementedError(
                "svd: with full_matrices=True there is no derivative, as some of the singular vectors are arbitrary; "
                "pass full_matrices=False, or compute_uv=False if you need only the singular values"
            )
        u, s, vh = replace(self, full=False, vectors=True)(a)
        v = adjoint(vh)
        da_v = batched_matmul(da, v)
        dp = batched_matmul(adjoint(u), da_v)
        ds = real_part(diagonal(dp))
        if not self.vectors:
            return (s,), (ds,)
        f = Expr(reciprocal_differences(s * s))
        # Singular vectors of equal singular values are arbitrary. Assume that they do not rotate into each other.
        f = as_dtype(where(apply(IsFinite(), f), f, 0).array, dp.type.dtype)
        dp_s, s_dp = scale_columns(dp, s), scale_rows(dp, s)
        is_zero = Expr(s) == 0
        inverse_s = where(is_zero, 0, 1 / where(is_zero, 1, Expr(s))).array
        u_rotation = (dp_s + adjoint(dp_s)) * f
        v_rotation = (s_dp + adjoint(s_dp)) * f
        if a.type.dtype.kind == "c":
            phase = imaginary_part(diagonal_part(dp))
            u_rotation = u_rotation + scale_columns(Complex()(zeros_like(phase), phase), inverse_s)
        du, dv = batched_matmul(u, u_rotation), batched_matmul(v, v_rotation)
        if rows > columns:
            du = du + scale_columns(da_v - batched_matmul(u, dp), inverse_s)
        if columns > rows:
            da_adjoint_u = batched_matmul(adjoint(da), u)
            dv = dv + scale_columns(da_adjoint_u - batched_matmul(v, adjoint(dp)), inverse_s)
        return (u, s, vh), (du, ds, adjoint(dv))

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        if not a.type.size:
            return tuple(_lower_identity(hlo, type) for type in self.out_types(a.type))
        u, s, vh = replace(self, vectors=True).out_types(a.type)
        mode = ("A" if self.full else "S") if self.vectors else "N"
        _, values, left, right, info = lapack_call(
            hlo,
            self.routine,
            (a,),
            (a.type.strong(), s, u, vh, ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            mode=char_attribute(mode),
        )
        return nan_on_failure(hlo, info, *((left, values, right) if self.vectors else (values,)))

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        if not a.size:
            rows, columns = a.shape
            return np.eye(rows, dtype=a.dtype), np.zeros(0), np.eye(columns, dtype=a.dtype)
        u, s, vh, info = numpy_routine(self.routine, a.dtype)(a, compute_uv=self.vectors, full_matrices=self.full)
        return numpy_nan_unless(info == 0, *((u, s, vh) if self.vectors else (s,)))


def _lower_identity(hlo: Hlo, type: ArrayType) -> Any:
    """Return identity matrices: the singular vectors of matrices without elements."""
    if not type.size:
        return hlo.constant(0, type)
    index = type.with_dtype(np.int32)
    rows, columns = (hlo.op("stablehlo.iota", (), index, f"iota_dimension = {type.ndim - n} : i64") for n in (2, 1))
    return hlo.op("stablehlo.convert", (Compare("EQ").lower(hlo, rows, columns),), type)
