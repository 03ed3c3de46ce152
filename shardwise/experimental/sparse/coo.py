"""COO: sparse matrices in coordinate format, without batch dims. BCOO supports more operations."""

import operator
from collections.abc import Sequence
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_conversion import bcoo_fromdense
from shardwise.experimental.sparse.matrix_product import (
    check_matrix_shape,
    check_transpose_axes,
    multiply,
    multiply_vector_or_matrix,
)
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, DTypeLike


@final
class COO(JAXSparse):
    """A sparse matrix in coordinate format.

    Args:
        args: the elements, their rows and their columns: three vectors of the same length.
        shape: the shape of the matrix.
        rows_sorted: whether the rows are sorted.
        cols_sorted: whether the columns are sorted.

    Raises:
        ValueError: if the shapes do not match, or `shape` is not that of a matrix.

    Example:
        >>> matrix = jax.experimental.sparse.COO((jnp.ones(2), jnp.array([0, 1]), jnp.array([1, 0])), shape=(2, 2))
        >>> matrix @ jnp.array([3.0, 4.0])
        Array([4., 3.], dtype=float32)
    """

    row: Any
    col: Any

    def __init__(
        self,
        args: tuple[ArrayLike, ArrayLike, ArrayLike],
        *,
        shape: Sequence[int],
        rows_sorted: bool = False,
        cols_sorted: bool = False,
    ) -> None:
        self.data, self.row, self.col = (as_operand(part, "COO") for part in args)
        self.shape = tuple(map(operator.index, shape))
        self._rows_sorted, self._cols_sorted = bool(rows_sorted), bool(cols_sorted)
        check_matrix_shape("COO", self.shape)
        if not self.data.shape == self.row.shape == self.col.shape or self.data.ndim != 1:
            raise ValueError(
                "COO: elements, rows and columns must be vectors of the same length, not of the shapes "
                f"{self.data.shape}, {self.row.shape} and {self.col.shape}"
            )

    @classmethod
    def fromdense(cls, mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> "COO":
        """Convert a dense matrix; see `coo_fromdense`."""
        return coo_fromdense(mat, nse=nse, index_dtype=index_dtype)

    @classmethod
    def _from_bcoo(cls, mat: BCOO) -> "COO":
        """Convert a BCOO matrix with sorted coordinates."""
        return cls((mat.data, mat.indices[:, 0], mat.indices[:, 1]), shape=mat.shape, rows_sorted=True)

    @classmethod
    def _empty(cls, shape: Sequence[int], *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32") -> "COO":
        """Return a matrix without elements."""
        check_matrix_shape("COO", tuple(shape))
        return cls._from_bcoo(BCOO._empty(shape, dtype=dtype, index_dtype=index_dtype))

    @classmethod
    def _eye(cls, N: int, M: int, k: int, *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32") -> "COO":
        """Return a matrix with ones on the k-th diagonal."""
        return cls._from_bcoo(BCOO._eye(N, M, k, dtype=dtype, index_dtype=index_dtype))

    @property
    def nse(self) -> int:
        """The number of elements that are stored."""
        return self.data.size

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self.data, self.row, self.col

    def _sort_indices(self) -> "COO":
        """Return the matrix with its elements sorted by rows, then by columns."""
        return COO._from_bcoo(self.to_bcoo().sort_indices())

    def to_bcoo(self) -> BCOO:
        """Return the matrix as BCOO."""
        return BCOO((self.data, jnp.stack([self.row, self.col], axis=-1)), shape=self.shape)

    def todense(self) -> Array:
        """Return the dense matrix."""
        return self.to_bcoo().todense()

    def transpose(self, axes: Sequence[int] | None = None) -> "COO":
        """Exchange rows and columns. `axes` must be None."""
        check_transpose_axes("COO", axes)
        return COO(
            (self.data, self.col, self.row),
            shape=self.shape[::-1],
            rows_sorted=self._cols_sorted,
            cols_sorted=self._rows_sorted,
        )

    def __matmul__(self, other: "ArrayLike | JAXSparse") -> Array:
        return multiply_vector_or_matrix(self, other)


def _flatten(mat: COO) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return mat._arrays, (mat.shape, mat._rows_sorted, mat._cols_sorted)


def _unflatten(static: tuple[Any, ...], children: Any) -> COO:
    """Return a sparse matrix with any children: transformations put other objects into pytrees than arrays."""
    result = object.__new__(COO)
    result.data, result.row, result.col = children
    result.shape, result._rows_sorted, result._cols_sorted = static
    return result


register_pytree_node(COO, _flatten, _unflatten)


def coo_fromdense(mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> COO:
    """Convert a dense matrix to a sparse one.

    Args:
        mat: the matrix.
        nse: the number of elements to store. It must be given under `jit`; None counts the nonzero ones.
        index_dtype: the dtype of the rows and columns.

    Returns:
        The sparse matrix. If it stores more elements than there are, the others are padding.

    Raises:
        ConcretizationTypeError: if `nse` is None and `mat` is traced.
        ValueError: if `mat` is not a matrix.

    Example:
        >>> jax.experimental.sparse.coo_fromdense(jnp.eye(3))
        COO(float32[3, 3], nse=3)
    """
    dense = as_operand(mat, "coo_fromdense")
    check_matrix_shape("coo_fromdense", dense.shape)
    return COO._from_bcoo(bcoo_fromdense(dense, nse=nse, index_dtype=index_dtype))


def coo_todense(mat: COO) -> Array:
    """Convert a sparse matrix to a dense one.

    Args:
        mat: the sparse matrix.

    Returns:
        The dense matrix.

    Raises:
        AttributeError: if `mat` is not sparse.

    Example:
        >>> jax.experimental.sparse.coo_todense(jax.experimental.sparse.coo_fromdense(jnp.eye(2)))
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return mat.todense()


def coo_matvec(mat: COO, v: ArrayLike, transpose: bool = False) -> Array:
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
        >>> jax.experimental.sparse.coo_matvec(jax.experimental.sparse.coo_fromdense(jnp.eye(2)), jnp.arange(2.0))
        Array([0., 1.], dtype=float32)
    """
    return multiply("coo_matvec", mat, v, 1, transpose=transpose)


def coo_matmat(mat: COO, B: ArrayLike, *, transpose: bool = False) -> Array:
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
        >>> jax.experimental.sparse.coo_matmat(jax.experimental.sparse.coo_fromdense(jnp.eye(2)), jnp.ones((2, 1)))
        Array([[1.],
               [1.]], dtype=float32)
    """
    return multiply("coo_matmat", mat, B, 2, transpose=transpose)
