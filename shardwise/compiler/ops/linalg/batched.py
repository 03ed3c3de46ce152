"""Stacks of matrices: the family of ops that factor or solve each matrix of a stack, and what their rules are made of.

An op of the family works on the last dims of its operands; the dims before are a batch. A batch may be cut, and each
device then works on its own matrices; the matrices themselves stay whole.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, ignore_float_errors, result_types
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.base import DtypeSet, full_like
from shardwise.compiler.ops.elementwise.complex_parts import Conj, Imag, Real
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.linalg.lapack import LAPACK_DTYPES
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, Transpose, move_dim
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.compiler.shardings.factors import FactorRule

INDEX = np.dtype(np.int32)


class BatchedMatrixOp(Op):
    """Each operand is a stack: the batch dims, which all share, then as many dims as `core` says, which stay whole."""

    core_ranks: ClassVar[tuple[int, ...]] = (2,)
    accepts: ClassVar[DtypeSet] = LAPACK_DTYPES
    square: ClassVar[bool] = False

    @property
    def independent_dim(self) -> tuple[int, int] | None:
        """An operand, and a dim of it counted from its end: each slice along it is worked on alone, and becomes the
        slice of the result. None where there is no such dim."""
        return None

    def batch_shape(self, *types: ArrayType) -> tuple[int, ...]:
        """The sizes of the batch dims. Operands that do not go together are an error."""
        if len(types) != len(self.core_ranks):
            raise TypeError(f"{self.name}: needs {len(self.core_ranks)} operands, not {len(types)}")
        for type, core in zip(types, self.core_ranks, strict=True):
            if type.ndim < core:
                raise TypeError(f"{self.name}: needs an array of rank {core} or more, not {type}")
        sizes = types[0].shape[: types[0].ndim - self.core_ranks[0]]
        for type, core in zip(types[1:], self.core_ranks[1:], strict=True):
            if type.shape[: type.ndim - core] != sizes:
                raise TypeError(f"{self.name}: the batch dims of {types[0]} and {type} differ")
        if not self.accepts.contains(types[0].dtype):
            raise TypeError(f"{self.name}: needs {self.accepts.description}, not {types[0]}")
        if self.square and types[0].shape[-1] != types[0].shape[-2]:
            raise TypeError(f"{self.name}: needs square matrices, not {types[0]}")
        return sizes

    def factors(self, *types: ArrayType) -> FactorRule:
        batch = types[0].ndim - self.core_ranks[0]
        sizes = list(types[0].shape[:batch])
        shared = None
        tables = []
        for number, type in enumerate((*types, *result_types(self, types))):
            dims: list[tuple[int, ...]] = [(dim,) for dim in range(batch)]
            for dim in range(batch, type.ndim):
                passes = self.independent_dim is not None and dim - type.ndim == self.independent_dim[1]
                if passes and shared is not None and number >= len(types):
                    dims.append((shared,))
                    continue
                if passes and self.independent_dim is not None and number == self.independent_dim[0]:
                    shared = len(sizes)
                dims.append((len(sizes),))
                sizes.append(type.shape[dim])
            tables.append(tuple(dims))
        whole = frozenset(range(batch, len(sizes))) - {shared}
        return FactorRule(
            tuple(tables[: len(types)]), tuple(tables[len(types) :]), tuple(sizes), need_replication=whole
        )

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = {number for number, dim in enumerate(dims) if dim is not None}
        if self.independent_dim is not None and batched == {self.independent_dim[0]}:
            return self._with_more_slices(operands, dims)
        found = self(*(batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)))
        return found, 0 if self.single else (0,) * len(found)

    def _with_more_slices(self, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """One matrix for the whole batch: no need to repeat it. The batch is more of what passes through."""
        assert self.independent_dim is not None
        number, place = self.independent_dim
        x, dim = operands[number], dims[number]
        assert dim is not None
        at = x.type.ndim - 1 + place
        x = move_dim(x, dim, at)
        apart = x.type.shape
        together = Reshape((*apart[:at], apart[at] * apart[at + 1], *apart[at + 2 :]))(x)
        found = self(*(together if n == number else y for n, y in enumerate(operands)))
        return Reshape(apart)(found), at

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        results = [type.strong() for type in result_types(self, tuple(x.type for x in operands))]
        if any(type.size for type in results):
            return self.lower_nonempty(hlo, *operands)
        nothing = tuple(hlo.constant(0, type) for type in results)
        return nothing[0] if self.single else nothing

    def lower_nonempty(self, hlo: Hlo, *operands: Any, **_: Any) -> Any:
        """As `lower`, where there is a result."""
        raise self.missing_rule("lower_nonempty")

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        results = result_types(self, tuple(ArrayType(x.shape, x.dtype) for x in operands))
        batch = operands[0].shape[: operands[0].ndim - self.core_ranks[0]]
        found = [np.zeros(type.shape, type.dtype) for type in results]
        if any(type.size for type in results):
            for index in np.ndindex(*batch):
                one = self.reference_one(*(x[index] for x in operands))
                for whole, part in zip(found, (one,) if self.single else one, strict=True):
                    whole[index] = part
        return found[0] if self.single else tuple(found)

    def reference_one(self, *operands: Any, **_: Any) -> Any:
        """What the op means for one matrix, where there is a result."""
        raise self.missing_rule("reference_one")


def epsilon(dtype: Any) -> float:
    """How far the next number after 1 is from it."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def as_dtype(x: Any, dtype: Any) -> Any:
    return x if x.type.dtype == dtype else Convert(np.dtype(dtype))(x)


def adjoint(x: Any) -> Any:
    """The transpose of each matrix, conjugated."""
    return conjugate(matrix_transpose(x))


def matrix_transpose(x: Any) -> Any:
    """The transpose of each matrix."""
    ndim = x.type.ndim
    return Transpose((*range(ndim - 2), ndim - 1, ndim - 2))(x)


def conjugate(x: Any) -> Any:
    return Conj()(x) if x.type.dtype.kind == "c" else x


def real_part(x: Any) -> Any:
    return Real()(x) if x.type.dtype.kind == "c" else x


def imaginary_part(x: Any) -> Any:
    return Imag()(x) if x.type.dtype.kind == "c" else zeros_like(x)


def batched_matmul(x: Any, y: Any) -> Any:
    """The matrix product of each pair of two stacks with the same batch."""
    batch = tuple(range(x.type.ndim - 2))
    return Dot(((len(batch) + 1,), (len(batch),)), (batch, batch))(x, y)


def row_column_mask(shape: tuple[int, ...], direction: str, offset: int = 0) -> Any:
    """Where row index + `offset` and column index of matrices compare so: "GE" is the lower triangle."""
    rows, columns = (Iota(shape, len(shape) - place, INDEX)() for place in (2, 1))
    return Compare(direction)(Add()(rows, full_like(rows, offset)) if offset else rows, columns)


def lower_triangle(x: Any, offset: int = 0) -> Any:
    """Each matrix with zeros above its diagonal; `offset` moves the border to the right."""
    return Select()(row_column_mask(x.type.shape, "GE", offset), x, zeros_like(x))


def upper_triangle(x: Any, offset: int = 0) -> Any:
    """Each matrix with zeros below its diagonal; `offset` moves the border to the right."""
    return Select()(row_column_mask(x.type.shape, "LE", offset), x, zeros_like(x))


def diagonal_part(x: Any) -> Any:
    """Each matrix with zeros beside its diagonal."""
    return Select()(row_column_mask(x.type.shape, "EQ"), x, zeros_like(x))


def identity(shape: tuple[int, ...], dtype: Any) -> Any:
    """A stack of matrices that have ones on the diagonal, zeros elsewhere."""
    return Convert(np.dtype(dtype))(row_column_mask(shape, "EQ"))


def diagonal(x: Any) -> Any:
    """The diagonal of each matrix, as a stack of vectors."""
    *_, rows, columns = x.type.shape
    size = min(rows, columns)
    ndim = x.type.ndim
    return Sum((ndim - 2,))(diagonal_part(slice_along(slice_along(x, ndim - 2, 0, size), ndim - 1, 0, size)))


def scale_columns(x: Any, numbers: Any) -> Any:
    """Each column of matrices times its own number."""
    ndim = x.type.ndim
    return Mul()(x, Broadcast(x.type.shape, (*range(ndim - 2), ndim - 1))(as_dtype(numbers, x.type.dtype)))


def scale_rows(x: Any, numbers: Any) -> Any:
    """Each row of matrices times its own number."""
    return Mul()(x, Broadcast(x.type.shape, tuple(range(x.type.ndim - 1)))(as_dtype(numbers, x.type.dtype)))


def submatrix(x: Any, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
    """A part of each matrix: from the first number up to the second."""
    ndim = x.type.ndim
    return slice_along(slice_along(x, ndim - 2, *rows), ndim - 1, *columns)


def permute_along(x: Any, places: Any, dim: int) -> Any:
    """Each matrix with its rows, or its columns, where `dim` is those, in an order of its own."""
    if not x.type.size:
        return x
    ndim = x.type.ndim
    batch = tuple(range(ndim - 2))
    other = 2 * ndim - 3 - dim
    sizes = tuple(x.type.shape[other] if d == other else 1 for d in range(ndim))
    gather = Gather((other,), (dim,), batch, batch, (dim,), sizes, unique=True)
    return gather(x, Reshape((*places.type.shape, 1))(places))
