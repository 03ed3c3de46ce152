"""svd: singular values, and the orthonormal vectors on either side."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Complex
from shardwise.compiler.ops.elementwise.rounding import IsFinite
from shardwise.compiler.ops.elementwise.select import Compare, Select, complex_part_type
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
from shardwise.compiler.ops.linalg.cusolver import char_attribute
from shardwise.compiler.ops.linalg.eigen import reciprocal_differences
from shardwise.compiler.ops.linalg.lapack import lapack_call, nan_on_failure, numpy_nan_unless, numpy_routine
from shardwise.compiler.ops.shape.constants import zeros_like


@final
@record
class Svd(BatchedMatrixOp):
    """The singular values of matrices, descending, and where `vectors`, U and V* with `a = U diag(values) V*`.

    `full`: square U and V*; else as many vectors as there are values. U comes first, then the values.
    """

    name = "svd"
    single = False
    full: bool = False
    vectors: bool = True

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
        """With dP = U* dA V: the values move by its real diagonal. U and V turn in themselves by F ∘ (dP S + S dP*) and
        F ∘ (S dP + dP* S), where F has 1 / (sⱼ² - sᵢ²); what of dA V lies outside of U's columns, shared by the values,
        turns U out of itself, and likewise V. A phase that both could take goes to U."""
        (a,), (da,) = primals, tangents
        *_, rows, columns = a.type.shape
        if self.vectors and self.full and rows != columns:
            raise NotImplementedError(
                "svd: with full_matrices=True there is no derivative, as some of the vectors are arbitrary; pass "
                "full_matrices=False, or compute_uv=False for the values alone"
            )
        u, s, vh = replace(self, full=False, vectors=True)(a)
        v = adjoint(vh)
        moved = batched_matmul(da, v)
        inner = batched_matmul(adjoint(u), moved)
        ds = real_part(diagonal(inner))
        if not self.vectors:
            return (s,), (ds,)
        f = reciprocal_differences(Mul()(s, s))
        # Where two values are equal their vectors are arbitrary, and are taken not to turn into each other.
        f = as_dtype(Select()(IsFinite()(f), f, full_like(f, 0)), inner.type.dtype)
        by_values, of_values = scale_columns(inner, s), scale_rows(inner, s)
        none = Compare("EQ")(s, full_like(s, 0))
        shared = Select()(none, full_like(s, 0), Div()(full_like(s, 1), Select()(none, full_like(s, 1), s)))
        turn_u = Mul()(Add()(by_values, adjoint(by_values)), f)
        turn_v = Mul()(Add()(of_values, adjoint(of_values)), f)
        if a.type.dtype.kind == "c":
            angle = imaginary_part(diagonal_part(inner))
            turn_u = Add()(turn_u, scale_columns(Complex()(zeros_like(angle), angle), shared))
        du, dv = batched_matmul(u, turn_u), batched_matmul(v, turn_v)
        if rows > columns:
            du = Add()(du, scale_columns(Sub()(moved, batched_matmul(u, inner)), shared))
        if columns > rows:
            back = batched_matmul(adjoint(da), u)
            dv = Add()(dv, scale_columns(Sub()(back, batched_matmul(v, adjoint(inner))), shared))
        return (u, s, vh), (du, ds, adjoint(dv))

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        if not a.type.size:
            return tuple(_unit(hlo, type) for type in self.out_types(a.type))
        u, s, vh = replace(self, vectors=True).out_types(a.type)
        mode = ("A" if self.full else "S") if self.vectors else "N"
        _, values, left, right, failed = lapack_call(
            hlo,
            "gesdd",
            (a,),
            (a.type.strong(), s, u, vh, ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            mode=char_attribute(mode),
        )
        return nan_on_failure(hlo, failed, *((left, values, right) if self.vectors else (values,)))

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        if not a.size:
            rows, columns = a.shape
            return np.eye(rows, dtype=a.dtype), np.zeros(0), np.eye(columns, dtype=a.dtype)
        u, s, vh, failed = numpy_routine("gesdd", a.dtype)(a, compute_uv=self.vectors, full_matrices=self.full)
        return numpy_nan_unless(failed == 0, *((u, s, vh) if self.vectors else (s,)))


def _unit(hlo: Hlo, type: ArrayType) -> Any:
    """Of matrices without an element: of a side that has any vectors, those of the axes."""
    if not type.size:
        return hlo.constant(0, type)
    index = type.with_dtype(np.int32)
    rows, columns = (hlo.op("stablehlo.iota", (), index, f"iota_dimension = {type.ndim - n} : i64") for n in (2, 1))
    return hlo.op("stablehlo.convert", (Compare("EQ").lower(hlo, rows, columns),), type)
