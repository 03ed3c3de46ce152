"""Reductions to similar matrices: schur, hessenberg and tridiagonal. They have no derivatives."""

from collections.abc import Sequence
from typing import Any, NoReturn, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.select import complex_part_type
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.ops.linalg.lapack import lapack_call, nan_on_failure, numpy_nan_unless, numpy_routine
from shardwise.compiler.ops.linalg.xla_linalg import char_attribute


class SimilarityReduction(BatchedMatrixOp):
    """Reduce each square matrix to a similar matrix of a simpler form."""

    single = False
    square = True
    is_checked = True

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> NoReturn:
        raise NotImplementedError(f"{self.name}: has no derivative; use `eigh`, `svd` or `qr`, which have one")


@final
@record
class Schur(SimilarityReduction):
    """Schur decomposition `a = Z T Z*` with unitary Z: returns T and Z, or T alone without `vectors`.

    T is upper triangular. For real matrices it is quasi upper triangular: it has a 2 × 2 block on the diagonal for each
    pair of complex eigenvalues.
    """

    name = "schur"
    vectors: bool = True

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        self.batch_shape(a)
        return (a.strong(),) * (1 + self.vectors)

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        values, count = ArrayType(a.type.shape[:-1], a.type.dtype), ArrayType(a.type.shape[:batch], np.int32)
        t, z, *_, info = lapack_call(
            hlo,
            "gees",
            (a,),
            (a.type.strong(), a.type.strong(), *[values] * (1 if a.type.dtype.kind == "c" else 2), count, count),
            batch,
            ((0, 0),),
            mode=char_attribute("V" if self.vectors else "N"),
            sort=char_attribute("N"),
        )
        return nan_on_failure(hlo, info, t, *[z] * self.vectors)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        t, *_, z, _, info = numpy_routine("gees", a.dtype)(lambda *_: False, a, compute_v=self.vectors)
        return numpy_nan_unless(info == 0, t, *[z] * self.vectors)


@final
@record
class Hessenberg(SimilarityReduction):
    """Reduction to Hessenberg form, with zeros below the first subdiagonal.

    Returns LAPACK's packed form, which has Householder vectors in place of the zeros, and their taus.
    """

    name = "hessenberg"

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        return a.strong(), ArrayType((*batch, max(0, a.shape[-1] - 1)), a.dtype)

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        packed, taus, info = lapack_call(
            hlo,
            "gehrd",
            (a,),
            (*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            low="1 : i32",
            high=f"{a.type.shape[-1]} : i32",
        )
        return nan_on_failure(hlo, info, packed, taus)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        packed, taus, info = numpy_routine("gehrd", a.dtype)(a)
        return numpy_nan_unless(info == 0, packed, taus)


@final
@record
class Tridiagonal(SimilarityReduction):
    """Reduction of Hermitian matrices to tridiagonal form. Only one triangle of the operand is read.

    Returns LAPACK's packed form, which has Householder vectors in place of the zeros, then the diagonal, the
    off-diagonal and the taus.
    """

    name = "tridiagonal"
    is_lower: bool = True

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        size = a.shape[-1]
        real = (complex_part_type(a) if a.dtype.kind == "c" else a).dtype
        off_diagonal = (*batch, max(0, size - 1))
        return (
            a.strong(),
            ArrayType((*batch, size), real),
            ArrayType(off_diagonal, real),
            ArrayType(off_diagonal, a.dtype),
        )

    def lower_nonempty(self, hlo: Hlo, a: HloValue) -> Any:
        batch = a.type.ndim - 2
        *results, info = lapack_call(
            hlo,
            "sytrd",
            (a,),
            (*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            uplo=char_attribute("L" if self.is_lower else "U"),
        )
        return nan_on_failure(hlo, info, *results)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        *results, info = numpy_routine("sytrd", a.dtype)(a, lower=self.is_lower)
        return numpy_nan_unless(info == 0, *results)
