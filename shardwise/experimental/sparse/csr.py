"""CSR and CSC: sparse matrices in compressed sparse row and column format. BCSR and BCOO support more operations."""

import operator
from collections.abc import Sequence
from typing import Any, Self, final

import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_shape import bcoo_transpose
from shardwise.experimental.sparse.bcsr import BCSR, bcsr_fromdense
from shardwise.experimental.sparse.matrix_product import (
    check_matrix_shape,
    check_transpose_axes,
    multiply,
    multiply_vector_or_matrix,
)
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, DTypeLike


class CompressedMatrix(JAXSparse):
    """A sparse matrix whose elements are sorted along one dim, the compressed one: rows, or columns."""

    indices: Any
    indptr: Any

    def __init__(self, args: tuple[ArrayLike, ArrayLike, ArrayLike], *, shape: Sequence[int]) -> None:
        name = type(self).__name__
        self.data, self.indices, self.indptr = (as_operand(part, name) for part in args)
        self.shape = tuple(map(operator.index, shape))
        check_matrix_shape(name, self.shape)
        count = self._row_shape[0] + 1
        if self.data.shape != self.indices.shape or self.data.ndim != 1 or self.indptr.shape != (count,):
            raise ValueError(
                f"{name}: a matrix of shape {self.shape} needs elements and indices of shape (nse,) and pointers of "
                f"shape ({count},); these have the shapes {self.data.shape}, {self.indices.shape} and "
                f"{self.indptr.shape}"
            )

    @property
    def _row_shape(self) -> tuple[int, ...]:
        """The shape, with the compressed dim first."""
        raise NotImplementedError

    @classmethod
    def _from_rows(cls, rows: BCSR, shape: Sequence[int]) -> Self:
        """Return the matrix of this shape whose arrays are those of `rows`."""
        return cls((rows.data, rows.indices, rows.indptr), shape=shape)

    def _rows(self) -> BCSR:
        """Return the matrix with the compressed dim first, as BCSR."""
        return BCSR(self._arrays, shape=self._row_shape)

    @property
    def nse(self) -> int:
        """The number of elements that are stored."""
        return self.data.size

    @property
    def _arrays(self) -> tuple[Any, Any, Any]:
        return self.data, self.indices, self.indptr

    def todense(self) -> Array:
        """Return the dense matrix."""
        return self.to_bcoo().todense()

    def __matmul__(self, other: "ArrayLike | JAXSparse") -> Array:
        return multiply_vector_or_matrix(self, other)


@final
class CSR(CompressedMatrix):
    """A sparse matrix in compressed sparse row format.

    Args:
        args: the elements, sorted by rows; their columns; and the index of the first element of each row, and of the
            end.
        shape: the shape of the matrix.

    Raises:
        ValueError: if the shapes do not match, or `shape` is not that of a matrix.

    Example:
        >>> matrix = jax.experimental.sparse.CSR.fromdense(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
        >>> matrix @ jnp.array([1.0, 10.0])
        Array([20.,  3.], dtype=float32)
    """

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return self.shape

    @classmethod
    def fromdense(cls, mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> "CSR":
        """Convert a dense matrix; see `csr_fromdense`."""
        return csr_fromdense(mat, nse=nse, index_dtype=index_dtype)

    @classmethod
    def _empty(cls, shape: Sequence[int], *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32") -> "CSR":
        """Return a matrix without elements."""
        check_matrix_shape("CSR", tuple(shape))
        return cls._from_rows(BCSR._empty(shape, dtype=dtype, index_dtype=index_dtype), shape)

    @classmethod
    def _eye(cls, N: int, M: int, k: int, *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32") -> "CSR":
        """Return a matrix with ones on the k-th diagonal."""
        return cls._from_rows(BCSR._eye(N, M, k, dtype=dtype, index_dtype=index_dtype), (N, M))

    def to_bcoo(self) -> BCOO:
        """Return the matrix as BCOO."""
        return self._rows().to_bcoo()

    def transpose(self, axes: Sequence[int] | None = None) -> "CSC":
        """Exchange rows and columns. `axes` must be None."""
        check_transpose_axes("CSR", axes)
        return CSC(self._arrays, shape=self.shape[::-1])


@final
class CSC(CompressedMatrix):
    """A sparse matrix in compressed sparse column format.

    Args:
        args: the elements, sorted by columns; their rows; and the index of the first element of each column, and of the
            end.
        shape: the shape of the matrix.

    Raises:
        ValueError: if the shapes do not match, or `shape` is not that of a matrix.

    Example:
        >>> matrix = jax.experimental.sparse.CSC.fromdense(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
        >>> matrix @ jnp.array([1.0, 10.0])
        Array([20.,  3.], dtype=float32)
    """

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return self.shape[::-1]

    @classmethod
    def fromdense(cls, mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> "CSC":
        """Convert a dense matrix. `nse` must be given under `jit`; None counts the nonzero elements."""
        dense = as_operand(mat, "CSC.fromdense")
        check_matrix_shape("CSC.fromdense", dense.shape)
        return cls._from_rows(bcsr_fromdense(dense.T, nse=nse, index_dtype=index_dtype), dense.shape)

    @classmethod
    def _empty(cls, shape: Sequence[int], *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32") -> "CSC":
        """Return a matrix without elements."""
        check_matrix_shape("CSC", tuple(shape))
        return cls._from_rows(BCSR._empty(tuple(shape)[::-1], dtype=dtype, index_dtype=index_dtype), shape)

    @classmethod
    def _eye(cls, N: int, M: int, k: int, *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32") -> "CSC":
        """Return a matrix with ones on the k-th diagonal."""
        return cls._from_rows(BCSR._eye(M, N, -k, dtype=dtype, index_dtype=index_dtype), (N, M))

    def to_bcoo(self) -> BCOO:
        """Return the matrix as BCOO."""
        return bcoo_transpose(self._rows().to_bcoo(), permutation=(1, 0))

    def transpose(self, axes: Sequence[int] | None = None) -> CSR:
        """Exchange rows and columns. `axes` must be None."""
        check_transpose_axes("CSC", axes)
        return CSR(self._arrays, shape=self.shape[::-1])


def _register(cls: type[CSR] | type[CSC]) -> None:
    def unflatten(shape: tuple[int, ...], children: Any) -> CSR | CSC:
        """Return a sparse matrix with any children: transformations put other objects into pytrees than arrays."""
        result = object.__new__(cls)
        result.data, result.indices, result.indptr = children
        result.shape = shape
        return result

    register_pytree_node(cls, lambda mat: (mat._arrays, mat.shape), unflatten)


_register(CSR)
_register(CSC)


def csr_fromdense(mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> CSR:
    """Convert a dense matrix to a sparse one.

    Args:
        mat: the matrix.
        nse: the number of elements to store. It must be given under `jit`; None counts the nonzero ones.
        index_dtype: the dtype of the columns and row pointers.

    Returns:
        The sparse matrix. If it stores more elements than there are, the others are padding.

    Raises:
        ConcretizationTypeError: if `nse` is None and `mat` is traced.
        ValueError: if `mat` is not a matrix.

    Example:
        >>> jax.experimental.sparse.csr_fromdense(jnp.eye(3))
        CSR(float32[3, 3], nse=3)
    """
    dense = as_operand(mat, "csr_fromdense")
    check_matrix_shape("csr_fromdense", dense.shape)
    return CSR._from_rows(bcsr_fromdense(dense, nse=nse, index_dtype=index_dtype), dense.shape)


def csr_todense(mat: CSR) -> Array:
    """Convert a sparse matrix to a dense one.

    Args:
        mat: the sparse matrix.

    Returns:
        The dense matrix.

    Raises:
        AttributeError: if `mat` is not sparse.

    Example:
        >>> jax.experimental.sparse.csr_todense(jax.experimental.sparse.csr_fromdense(jnp.eye(2)))
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return mat.todense()


def csr_matvec(mat: CSR, v: ArrayLike, transpose: bool = False) -> Array:
    """Multiply a sparse matrix by a vector.

    Args:
        mat: the sparse matrix.
        v: the vector.
        transpose: whether the transpose of the matrix is multiplied.

    Returns:
        The product, a vector.

    Raises:
        TypeError: if the shapes do not match.

    Example:
        >>> jax.experimental.sparse.csr_matvec(jax.experimental.sparse.csr_fromdense(jnp.eye(2)), jnp.arange(2.0))
        Array([0., 1.], dtype=float32)
    """
    return multiply("csr_matvec", mat, v, 1, transpose=transpose)


def csr_matmat(mat: CSR, B: ArrayLike, *, transpose: bool = False) -> Array:
    """Multiply a sparse matrix by a dense one.

    Args:
        mat: the sparse matrix.
        B: the dense matrix.
        transpose: whether the transpose of the sparse matrix is multiplied.

    Returns:
        The product, a dense matrix.

    Raises:
        TypeError: if the shapes do not match.

    Example:
        >>> jax.experimental.sparse.csr_matmat(jax.experimental.sparse.csr_fromdense(jnp.eye(2)), jnp.ones((2, 1)))
        Array([[1.],
               [1.]], dtype=float32)
    """
    return multiply("csr_matmat", mat, B, 2, transpose=transpose)
