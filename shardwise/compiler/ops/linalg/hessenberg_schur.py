"""Similar matrices with many zeros: schur, hessenberg and tridiagonal. They have no derivatives."""

from collections.abc import Sequence
from typing import Any, NoReturn, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.select import complex_part_type
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.ops.linalg.cusolver import char_attribute
from shardwise.compiler.ops.linalg.lapack import lapack_call, nan_on_failure, numpy_nan_unless, numpy_routine


class SimilarityReduction(BatchedMatrixOp):
    """Square matrices, each similar to what it is reduced to."""

    single = False
    square = True

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> NoReturn:
        raise NotImplementedError(f"{self.name}: has no derivative; `eigh`, `svd` and `qr` have one")


@final
@record
class Schur(SimilarityReduction):
    """T and the unitary Z of `a = Z T Z*`. T is upper triangular; of real matrices nearly so, with blocks of 2 × 2 on
    the diagonal for pairs of complex eigenvalues. Without `vectors`, T alone.
    """

    name = "schur"
    vectors: bool = True

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        self.batch_shape(a)
        return (a.strong(),) * (1 + self.vectors)

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        values, number = ArrayType(a.type.shape[:-1], a.type.dtype), ArrayType(a.type.shape[:batch], np.int32)
        found, vectors, *_, failed = lapack_call(
            hlo,
            "gees",
            (a,),
            (a.type.strong(), a.type.strong(), *[values] * (1 if a.type.dtype.kind == "c" else 2), number, number),
            batch,
            ((0, 0),),
            mode=char_attribute("V" if self.vectors else "N"),
            sort=char_attribute("N"),
        )
        return nan_on_failure(hlo, failed, found, *[vectors] * self.vectors)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        found, *_, vectors, _, failed = numpy_routine("gees", a.dtype)(lambda *_: False, a, compute_v=self.vectors)
        return numpy_nan_unless(failed == 0, found, *[vectors] * self.vectors)


@final
@record
class Hessenberg(SimilarityReduction):
    """The similar matrix with zeros below the first subdiagonal, in whose place are reflections; and their taus."""

    name = "hessenberg"

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        return a.strong(), ArrayType((*batch, max(0, a.shape[-1] - 1)), a.dtype)

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        packed, taus, failed = lapack_call(
            hlo,
            "gehrd",
            (a,),
            (*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            low="1 : i32",
            high=f"{a.type.shape[-1]} : i32",
        )
        return nan_on_failure(hlo, failed, packed, taus)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        packed, taus, failed = numpy_routine("gehrd", a.dtype)(a)
        return numpy_nan_unless(failed == 0, packed, taus)


@final
@record
class Tridiagonal(SimilarityReduction):
    """Of Hermitian matrices, of which one triangle is read, the similar tridiagonal one: packed with reflections in
    place of zeros, then its diagonal, what is beside it, and the taus.
    """

    name = "tridiagonal"
    is_lower: bool = True

    def out_types(self, a: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        batch = self.batch_shape(a)
        size = a.shape[-1]
        real = (complex_part_type(a) if a.dtype.kind == "c" else a).dtype
        beside = (*batch, max(0, size - 1))
        return a.strong(), ArrayType((*batch, size), real), ArrayType(beside, real), ArrayType(beside, a.dtype)

    def lower_nonempty(self, hlo: Hlo, a: Any) -> Any:
        batch = a.type.ndim - 2
        *found, failed = lapack_call(
            hlo,
            "sytrd",
            (a,),
            (*self.out_types(a.type), ArrayType(a.type.shape[:batch], np.int32)),
            batch,
            ((0, 0),),
            uplo=char_attribute("L" if self.is_lower else "U"),
        )
        return nan_on_failure(hlo, failed, *found)

    def reference_one(self, a: NumpyArray) -> tuple[NumpyArray, ...]:
        *found, failed = numpy_routine("sytrd", a.dtype)(a, lower=self.is_lower)
        return numpy_nan_unless(failed == 0, *found)
