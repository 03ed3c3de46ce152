"""Base class of ops on batches of matrices, and matrix functions that their derivative rules use.

Such an op factors or solves the matrices in the last dims of its operands; the dims before are batch dims. Batch dims
may be sharded, and each device then works on its own matrices. The matrices themselves are never sharded.

Derivative rules combine matrices of one type with the operators of arrays, which then do not promote. Formulas with a
number or a weakly typed tangent are written with `Expr`, because promotion would depend on the user's settings.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.jax_checks import check_equal
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, Op, ignore_float_errors, result_types
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.base import DtypeSet
from shardwise.compiler.ops.elementwise.complex_parts import Conj, Imag, Real
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.linalg.lapack import LAPACK_DTYPES, matrices_at_once
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, Transpose, move_dim
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.compiler.shardings.factors import FactorRule

INDEX = np.dtype(np.int32)


class BatchedMatrixOp(Op):
    """An op on batches of matrices or vectors.

    Each operand has the batch dims, which are the same for all operands, and then core dims, which need replication.
    `core_ranks` has the number of core dims of each operand. With `square`, the matrices of the first operand must be
    square. `overwritten` is the index of the operand that LAPACK overwrites with the first result, if any. The results
    of an op that `is_checked` are NaN for matrices for which LAPACK fails.
    """

    is_factorization = True
    core_ranks: ClassVar[tuple[int, ...]] = (2,)
    accepts: ClassVar[DtypeSet] = LAPACK_DTYPES
    square: ClassVar[bool] = False
    overwritten: ClassVar[int | None] = 0
    is_checked: ClassVar[bool] = False

    @property
    def independent_dim(self) -> tuple[int, int] | None:
        """The index of an operand and a negative core dim of it that may be sharded, or None.

        The op works on each slice along this dim independently, and the result has the same dim. An example is the
        right-hand sides of a system of linear equations.
        """
        return None

    def batch_shape(self, *types: ArrayType) -> tuple[int, ...]:
        """Check the operands and return the sizes of their batch dims."""
        if len(types) != len(self.core_ranks):
            raise TypeError(f"{self.name}: needs {len(self.core_ranks)} operands, not {len(types)}")
        for type, rank in zip(types, self.core_ranks, strict=True):
            if type.ndim < rank:
                raise TypeError(f"{self.name}: needs an array of rank {rank} or more, not {type}")
        sizes = types[0].shape[: types[0].ndim - self.core_ranks[0]]
        for type, rank in zip(types[1:], self.core_ranks[1:], strict=True):
            if type.shape[: type.ndim - rank] != sizes:
                raise TypeError(f"{self.name}: the batch dims of {types[0]} and {type} differ")
        if not self.accepts.contains(types[0].dtype):
            raise TypeError(f"{self.name}: needs {self.accepts.description}, not {types[0]}")
        if self.square and types[0].shape[-1] != types[0].shape[-2]:
            raise TypeError(f"{self.name}: needs square matrices, not {types[0]}")
        return sizes

    def loops_on_cpu(self, *types: ArrayType) -> bool:
        """Return whether a loop calls LAPACK for a part of the batch at a time on CPU."""
        batch = self.batch_shape(*types)
        at_once = matrices_at_once([type.shape[len(batch) :] for type in (*types, *result_types(self, types))])
        return at_once is not None and math.prod(batch) > at_once

    def check_as_jax(self, *types: ArrayType) -> None:
        check_equal(
            self.name,
            [type.without(tuple(range(type.ndim))[-rank:]) for type, rank in zip(types, self.core_ranks, strict=True)],
        )

    def factors(self, *types: ArrayType) -> FactorRule:
        batch = types[0].ndim - self.core_ranks[0]
        sizes = list(types[0].shape[:batch])
        independent_factor = None
        factor_dims = []
        for index, type in enumerate((*types, *result_types(self, types))):
            dims: list[tuple[int, ...]] = [(dim,) for dim in range(batch)]
            for dim in range(batch, type.ndim):
                is_independent = self.independent_dim is not None and dim - type.ndim == self.independent_dim[1]
                if is_independent and independent_factor is not None and index >= len(types):
                    dims.append((independent_factor,))
                    continue
                if is_independent and self.independent_dim is not None and index == self.independent_dim[0]:
                    independent_factor = len(sizes)
                dims.append((len(sizes),))
                sizes.append(type.shape[dim])
            factor_dims.append(tuple(dims))
        return FactorRule(
            tuple(factor_dims[: len(types)]),
            tuple(factor_dims[len(types) :]),
            tuple(sizes),
            need_replication=frozenset(range(batch, len(sizes))) - {independent_factor},
        )

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = {index for index, dim in enumerate(dims) if dim is not None}
        if self.independent_dim is not None and batched == {self.independent_dim[0]}:
            return self._vmap_into_independent_dim(operands, dims)
        results = self(*(batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)))
        return results, 0 if self.single else (0,) * len(results)

    def _vmap_into_independent_dim(self, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Merge the vmapped dim into the independent dim, so that the matrices need not be broadcast along it."""
        assert self.independent_dim is not None
        number, independent = self.independent_dim
        x, dim = operands[number], dims[number]
        assert dim is not None
        batch_dim = x.type.ndim - 1 + independent
        x = move_dim(x, dim, batch_dim)
        shape = x.type.shape
        merged = Reshape((*shape[:batch_dim], shape[batch_dim] * shape[batch_dim + 1], *shape[batch_dim + 2 :]))(x)
        result = self(*(merged if n == number else y for n, y in enumerate(operands)))
        return Reshape(shape)(result), batch_dim

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        results = [type.strong() for type in result_types(self, tuple(x.type for x in operands))]
        if any(type.size for type in results):
            return self.lower_nonempty(hlo, *operands)
        empty = tuple(hlo.constant(0, type) for type in results)
        return empty[0] if self.single else empty

    def lower_nonempty(self, hlo: Hlo, *operands: Any, **_: Any) -> Any:
        """Lower the op if any of its results has elements."""
        raise self.missing_rule("lower_nonempty")

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        results = result_types(self, tuple(ArrayType(x.shape, x.dtype) for x in operands))
        batch = operands[0].shape[: operands[0].ndim - self.core_ranks[0]]
        arrays = [np.zeros(type.shape, type.dtype) for type in results]
        if any(type.size for type in results):
            for index in np.ndindex(*batch):
                one = self.reference_one(*(x[index] for x in operands))
                for array, result in zip(arrays, (one,) if self.single else one, strict=True):
                    array[index] = result
        return arrays[0] if self.single else tuple(arrays)

    def reference_one(self, *operands: Any, **_: Any) -> Any:
        """Compute the results for one matrix with NumPy, if any of them has elements."""
        raise self.missing_rule("reference_one")


def epsilon(dtype: DTypeLike) -> float:
    """Return the machine epsilon of a dtype."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def as_dtype(x: Operand, dtype: DTypeLike) -> Any:
    """Convert `x` to `dtype`, if its dtype differs."""
    return x if x.type.dtype == dtype else Convert(np.dtype(dtype))(x)


def adjoint(x: Operand) -> Any:
    """Return the conjugate transpose of each matrix."""
    return conjugate(matrix_transpose(x))


def matrix_transpose(x: Operand) -> Any:
    """Transpose each matrix."""
    ndim = x.type.ndim
    return Transpose((*range(ndim - 2), ndim - 1, ndim - 2))(x)


def conjugate(x: Operand) -> Any:
    """Conjugate `x`, if it is complex."""
    return Conj()(x) if x.type.dtype.kind == "c" else x


def real_part(x: Operand) -> Any:
    """Return the real part of a complex array; a real array is returned unchanged."""
    return Real()(x) if x.type.dtype.kind == "c" else x


def imaginary_part(x: Operand) -> Any:
    """Return the imaginary part of a complex array, or zeros for a real one."""
    return Imag()(x) if x.type.dtype.kind == "c" else zeros_like(x)


def batched_matmul(x: Operand, y: Operand) -> Any:
    """Multiply the matrices of two arrays that have the same batch dims."""
    batch = tuple(range(x.type.ndim - 2))
    return Dot(((len(batch) + 1,), (len(batch),)), (batch, batch))(x, y)


def row_column_mask(shape: tuple[int, ...], direction: str, offset: int = 0) -> Any:
    """Return a mask that is true where row index + `offset` compares with the column index by `direction`.

    The direction "GE" masks the lower triangle, "EQ" the diagonal.
    """
    rows, columns = (Iota(shape, len(shape) - from_end, INDEX)() for from_end in (2, 1))
    return Compare(direction)((Expr(rows) + offset).array if offset else rows, columns)


def lower_triangle(x: Operand, offset: int = 0) -> Any:
    """Set the elements of each matrix above the diagonal with this offset to zero."""
    return Select()(row_column_mask(x.type.shape, "GE", offset), x, zeros_like(x))


def upper_triangle(x: Operand, offset: int = 0) -> Any:
    """Set the elements of each matrix below the diagonal with this offset to zero."""
    return Select()(row_column_mask(x.type.shape, "LE", offset), x, zeros_like(x))


def diagonal_part(x: Operand) -> Any:
    """Set the off-diagonal elements of each matrix to zero."""
    return Select()(row_column_mask(x.type.shape, "EQ"), x, zeros_like(x))


def identity(shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return identity matrices as an array of `shape`, which includes batch dims."""
    return Convert(np.dtype(dtype))(row_column_mask(shape, "EQ"))


def diagonal(x: Operand) -> Any:
    """Extract the diagonal of each matrix."""
    *_, rows, columns = x.type.shape
    size = min(rows, columns)
    ndim = x.type.ndim
    return Sum((ndim - 2,))(diagonal_part(slice_along(slice_along(x, ndim - 2, 0, size), ndim - 1, 0, size)))


def scale_columns(x: Operand, scales: Operand) -> Any:
    """Multiply each column of each matrix by its own scale."""
    ndim = x.type.ndim
    return Mul()(x, Broadcast(x.type.shape, (*range(ndim - 2), ndim - 1))(as_dtype(scales, x.type.dtype)))


def scale_rows(x: Operand, scales: Operand) -> Any:
    """Multiply each row of each matrix by its own scale."""
    return Mul()(x, Broadcast(x.type.shape, tuple(range(x.type.ndim - 1)))(as_dtype(scales, x.type.dtype)))


def submatrix(x: Operand, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
    """Slice each matrix. `rows` and `columns` are (start, stop) pairs."""
    ndim = x.type.ndim
    return slice_along(slice_along(x, ndim - 2, *rows), ndim - 1, *columns)


def permute_along(x: Operand, permutation: Operand, dim: int) -> Any:
    """Permute the rows or columns (whichever `dim` is) of each matrix by its own permutation."""
    if not x.type.size:
        return x
    ndim = x.type.ndim
    batch = tuple(range(ndim - 2))
    other = 2 * ndim - 3 - dim
    sizes = tuple(x.type.shape[other] if d == other else 1 for d in range(ndim))
    gather = Gather((other,), (dim,), batch, batch, (dim,), sizes, unique=True)
    return gather(x, Reshape((*permutation.type.shape, 1))(permutation))
