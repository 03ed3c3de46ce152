"""BCSR: sparse arrays in compressed sparse row format, with batch dims and dense dims."""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import lazy_module
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import (
    BCOO,
    batch_after_mapping,
    check_batch,
    layout_text,
    split_shape,
    stored_batch,
)
from shardwise.experimental.sparse.bcoo_conversion import bcoo_fromdense
from shardwise.experimental.sparse.bcoo_dot import DimensionNumbers, bcoo_dot_general
from shardwise.experimental.sparse.bcoo_layout import bcoo_sort_indices, sum_duplicates
from shardwise.experimental.sparse.bcoo_shape import bcoo_broadcast_in_dim, bcoo_concatenate
from shardwise.experimental.sparse.coordinates import look_up, map_batch
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, DTypeLike, Index, OutSharding

_operators = lazy_module("shardwise.experimental.sparse.operators")


@final
class BCSR(JAXSparse):
    """A sparse array in batched compressed sparse row format.

    It has two sparse dims, rows and columns, after `n_batch` batch dims and before `n_dense` dense dims.

    Args:
        args: the elements, of shape `(*batch, nse, *dense)`, sorted by rows; their columns, integers of shape
            `(*batch, nse)`; and the index of the first element of each row, and of the end, of shape `(*batch, rows +
            1)`.
        shape: the shape of the array.
        indices_sorted: whether the columns of each row are sorted.
        unique_indices: whether no two elements have the same row and column.

    Raises:
        TypeError: if the columns or row pointers are not integers.
        ValueError: if the shapes do not match each other or the shape.

    Example:
        >>> matrix = jax.experimental.sparse.BCSR.fromdense(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
        >>> matrix.indptr
        Array([0, 1, 2], dtype=int32)
        >>> matrix @ jnp.array([1.0, 10.0])
        Array([20.,  3.], dtype=float32)
    """

    indices: Any
    indptr: Any
    indices_sorted: bool
    unique_indices: bool
    _stored_batch: tuple[int, ...]

    def __init__(
        self,
        args: tuple[ArrayLike, ArrayLike, ArrayLike],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:
        self.data, self.indices, self.indptr = (as_operand(part, "BCSR") for part in args)
        self.shape = tuple(map(operator.index, shape))
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)
        _check(self)
        self._stored_batch = stored_batch(self._arrays, self.n_batch)

    @classmethod
    def fromdense(
        cls,
        mat: ArrayLike,
        *,
        nse: int | None = None,
        index_dtype: DTypeLike = np.int32,
        n_dense: int = 0,
        n_batch: int = 0,
    ) -> "BCSR":
        """Convert a dense array; see `bcsr_fromdense`."""
        return bcsr_fromdense(mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch)

    @classmethod
    def from_scipy_sparse(
        cls, mat: Any, *, index_dtype: DTypeLike | None = None, n_dense: int = 0, n_batch: int = 0
    ) -> "BCSR":
        """Convert a sparse matrix of scipy, in any format. `n_dense` and `n_batch` must be 0."""
        if n_dense or n_batch:
            raise NotImplementedError("BCSR.from_scipy_sparse: n_dense and n_batch must be 0")
        rows = mat.tocsr()
        dtype = index_dtype or np.int32
        arrays = jnp.asarray(rows.data), jnp.asarray(rows.indices, dtype), jnp.asarray(rows.indptr, dtype)
        return cls(arrays, shape=mat.shape)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> "BCSR":
        """Convert a BCOO array with two sparse dims. The elements are sorted."""
        if arr.n_sparse != 2:
            raise NotImplementedError(f"BCSR.from_bcoo: needs two sparse dims, and {arr} has {arr.n_sparse}")
        arr = bcoo_sort_indices(arr.expand_batch())
        rows, columns = arr.indices[..., 0], arr.indices[..., 1]
        pointers = map_batch(partial(_row_pointers, count=arr.sparse_shape[0]), arr.n_batch)(rows)
        return cls(
            (arr.data, columns, pointers),
            shape=arr.shape,
            indices_sorted=True,
            unique_indices=arr.unique_indices,
        )

    @classmethod
    def _empty(
        cls,
        shape: Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        index_dtype: DTypeLike = "int32",
        n_dense: int = 0,
        n_batch: int = 0,
        nse: int = 0,
    ) -> "BCSR":
        """Return an array without elements; all `nse` stored ones are padding."""
        _check_sparse_dims("BCSR._empty", shape, n_batch, n_dense)
        return cls.from_bcoo(
            BCOO._empty(shape, dtype=dtype, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch, nse=nse)
        )

    @classmethod
    def _eye(
        cls, N: int, M: int, k: int, *, dtype: DTypeLike | None = None, index_dtype: DTypeLike = "int32"
    ) -> "BCSR":
        """Return a matrix with ones on the k-th diagonal."""
        return cls.from_bcoo(BCOO._eye(N, M, k, dtype=dtype, index_dtype=index_dtype))

    @property
    def nse(self) -> int:
        """The number of elements that are stored, per batch element."""
        return self.indices.shape[-1]

    @property
    def n_batch(self) -> int:
        """The number of batch dims."""
        if self.indices.ndim < 1:
            raise ValueError(
                "BCSR: columns need the shape (*batch, nse). `vmap` and `scan` map batch dims only: the array needs "
                "n_batch > 0, as `BCSR.fromdense(x, n_batch=1)` has."
            )
        return self.indices.ndim - 1

    @property
    def n_sparse(self) -> int:
        """The number of sparse dims: rows and columns."""
        return 2

    @property
    def n_dense(self) -> int:
        """The number of dense dims."""
        return self.data.ndim - 1 - self.n_batch

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self.data, self.indices, self.indptr

    def _layout_text(self) -> str:
        return layout_text(self.n_batch, self.n_dense)

    def to_bcoo(self) -> BCOO:
        """Return the array in coordinate format."""
        rows, columns = self.shape[self.n_batch : self.n_batch + 2]
        batch = self.shape[: self.n_batch]
        indices = jnp.broadcast_to(self.indices, (*batch, self.nse))
        pointers = jnp.broadcast_to(self.indptr, (*batch, rows + 1))
        coordinates = map_batch(partial(_coordinates, columns=columns), self.n_batch)(indices, pointers)
        return BCOO(
            (self.data, coordinates),
            shape=self.shape,
            indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )

    def todense(self) -> Array:
        """Return the dense array."""
        return self.to_bcoo().todense()

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> "BCSR":
        """Add elements with the same row and column, and sort; see `BCOO.sum_duplicates`."""
        return BCSR.from_bcoo(sum_duplicates(self.to_bcoo(), nse, remove_zeros))

    def transpose(self, axes: Sequence[int] | None = None) -> "BCSR":
        """Not supported: the transpose of rows are columns."""
        self._unsupported("the transpose")

    def __matmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.matmul(self, other)

    def __rmatmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.matmul(other, self)

    def __getitem__(self, item: Index) -> BCOO:
        return _operators.getitem(self, item)


def _row_pointers(rows: Array, count: int) -> Array:
    """Return the index of the first element of each row, and of the end, from sorted rows. Padding comes last."""
    return jnp.searchsorted(rows, jnp.arange(count + 1, dtype=rows.dtype)).astype(rows.dtype)


def _coordinates(indices: Array, pointers: Array, columns: int) -> Array:
    """Return rows and columns of the stored elements; both are outside after the end of the last row."""
    position = jnp.arange(indices.shape[0], dtype=pointers.dtype)
    rows = (jnp.searchsorted(pointers, position, side="right") - 1).astype(indices.dtype)
    is_stored = position < pointers[-1]
    return jnp.stack([rows, jnp.where(is_stored, indices, columns)], axis=-1)


def _check_sparse_dims(name: str, shape: Sequence[int], n_batch: int, n_dense: int) -> None:
    _, sparse, _ = split_shape(name, shape, n_batch, n_dense)
    if len(sparse) != 2:
        raise ValueError(
            f"{name}: needs two sparse dims; shape {tuple(shape)} has {len(sparse)}, with n_batch={n_batch} and "
            f"n_dense={n_dense}"
        )


def _check(mat: BCSR) -> None:
    """Raise if the arrays do not match each other or the shape."""
    for name, array in (("columns", mat.indices), ("row pointers", mat.indptr)):
        if not jnp.issubdtype(array.dtype, np.integer):
            raise TypeError(f"BCSR: {name} must be integers, not {array.dtype}")
    n_batch = mat.n_batch
    fits = mat.data.ndim > n_batch and mat.data.shape[n_batch] == mat.nse and mat.indptr.ndim == n_batch + 1
    if fits:
        _check_sparse_dims("BCSR", mat.shape, n_batch, mat.n_dense)
        fits = (
            mat.indptr.shape[-1] == mat.shape[n_batch] + 1 and mat.data.shape[n_batch + 1 :] == mat.shape[n_batch + 2 :]
        )
    if not fits:
        raise ValueError(
            f"BCSR: an array of shape {mat.shape} needs elements of shape (*batch, nse, *dense), columns of shape "
            f"(*batch, nse) and row pointers of shape (*batch, rows + 1); these have the shapes {mat.data.shape}, "
            f"{mat.indices.shape} and {mat.indptr.shape}"
        )
    check_batch("BCSR", mat._arrays, mat.shape[:n_batch])


def _flatten(mat: BCSR) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return mat._arrays, (mat.shape, mat._stored_batch, mat.indices_sorted, mat.unique_indices)


def _unflatten(static: tuple[Any, ...], children: Any) -> BCSR:
    """Return a sparse array with any children: transformations put other objects into pytrees than arrays."""
    result = object.__new__(BCSR)
    result.data, result.indices, result.indptr = children
    result.shape, result._stored_batch, result.indices_sorted, result.unique_indices = static
    n_batch = getattr(result.indices, "ndim", 0) - 1
    if n_batch >= 0 and all(getattr(child, "ndim", 0) > n_batch for child in children):
        before = len(result._stored_batch)
        stored = stored_batch(children, n_batch)
        batch = batch_after_mapping(result.shape[:before], result._stored_batch, stored)
        result.shape, result._stored_batch = (*batch, *result.shape[before:]), stored
    return result


register_pytree_node(BCSR, _flatten, _unflatten)


def bcsr_fromdense(
    mat: ArrayLike, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: DTypeLike = np.int32
) -> BCSR:
    """Convert a dense array to a sparse one.

    Args:
        mat: the array.
        nse: the number of elements to store per batch element. It must be given under `jit`; None counts the nonzero
            ones.
        n_batch: the number of leading dims that are batch dims.
        n_dense: the number of trailing dims that are dense. Two dims must remain.
        index_dtype: the dtype of the columns and row pointers.

    Returns:
        The sparse array. If it stores more elements than there are, the others are padding.

    Raises:
        ConcretizationTypeError: if `nse` is None and `mat` is traced.
        ValueError: if there are not two sparse dims.

    Example:
        >>> jax.experimental.sparse.bcsr_fromdense(jnp.eye(3))
        BCSR(float32[3, 3], nse=3)
    """
    dense = as_operand(mat, "bcsr_fromdense")
    _check_sparse_dims("bcsr_fromdense", dense.shape, n_batch, n_dense)
    return BCSR.from_bcoo(bcoo_fromdense(dense, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype))


def bcsr_todense(mat: BCSR) -> Array:
    """Convert a sparse array to a dense one.

    Args:
        mat: the sparse array.

    Returns:
        The dense array.

    Raises:
        AttributeError: if `mat` is not sparse.

    Example:
        >>> jax.experimental.sparse.bcsr_todense(jax.experimental.sparse.bcsr_fromdense(jnp.eye(2)))
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return mat.todense()


def bcsr_extract(indices: ArrayLike, indptr: ArrayLike, mat: ArrayLike) -> Array:
    """Take the elements of a dense array at the rows and columns of a sparse one.

    Args:
        indices: the columns, of shape `(*batch, nse)`.
        indptr: the row pointers, of shape `(*batch, rows + 1)`.
        mat: the dense array, of shape `(*batch, rows, columns, *dense)`.

    Returns:
        The elements, of shape `(*batch, nse, *dense)`; 0 for padding.

    Raises:
        ValueError: if the shapes do not match.

    Example:
        >>> identity = jax.experimental.sparse.bcsr_fromdense(jnp.eye(2))
        >>> dense = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> jax.experimental.sparse.bcsr_extract(identity.indices, identity.indptr, dense)
        Array([1., 4.], dtype=float32)
    """
    columns, pointers, dense = (as_operand(x, "bcsr_extract") for x in (indices, indptr, mat))
    n_batch = columns.ndim - 1
    if pointers.ndim != columns.ndim or dense.ndim < n_batch + 2 or pointers.shape[-1] != dense.shape[n_batch] + 1:
        raise ValueError(
            f"bcsr_extract: columns of shape {columns.shape} and row pointers of shape {pointers.shape} do not match a "
            f"dense array of shape {dense.shape}"
        )
    locate = map_batch(partial(_coordinates, columns=dense.shape[n_batch + 1]), n_batch)
    return map_batch(look_up, n_batch)(dense, locate(columns, pointers))


def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """Add elements with the same row and column, and sort.

    Args:
        mat: the sparse array.
        nse: the number of elements to store per batch element. It must be given under `jit`; None computes the
            smallest.

    Returns:
        The array with sorted, unique columns in each row.

    Raises:
        ConcretizationTypeError: if `nse` is None and the columns are traced.

    Example:
        >>> mat = jax.experimental.sparse.BCSR((jnp.ones(2), jnp.array([1, 1]), jnp.array([0, 2])), shape=(1, 3))
        >>> jax.experimental.sparse.bcsr_sum_duplicates(mat).data
        Array([2.], dtype=float32)
    """
    return mat.sum_duplicates(nse, remove_zeros=False)


def bcsr_broadcast_in_dim(
    mat: BCSR, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: OutSharding = None
) -> BCSR:
    """Broadcast a sparse array to a shape.

    Args:
        mat: the sparse array.
        shape: the shape of the result.
        broadcast_dimensions: for each dim of `mat`, the dim of the result.
        sharding: must be None.

    Returns:
        The sparse array. New leading dims are batch dims.

    Raises:
        NotImplementedError: if `sharding` is not None, or the result would not have two sparse dims.
        ValueError: if the shapes do not match.

    Example:
        >>> mat = jax.experimental.sparse.bcsr_fromdense(jnp.eye(2))
        >>> jax.experimental.sparse.bcsr_broadcast_in_dim(mat, shape=(3, 2, 2), broadcast_dimensions=(1, 2))
        BCSR(float32[3, 2, 2], nse=2, n_batch=1)
    """
    result = bcoo_broadcast_in_dim(
        mat.to_bcoo(), shape=shape, broadcast_dimensions=broadcast_dimensions, sharding=sharding
    )
    return BCSR.from_bcoo(result)


def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """Join sparse arrays along a dim.

    Args:
        operands: the sparse arrays, with equal shapes except along the dim, and the same batch and dense dims.
        dimension: the dim, a batch or sparse dim.

    Returns:
        The sparse array.

    Raises:
        NotImplementedError: if the dim is dense.
        ValueError: if there are no operands, one of them is not a BCSR, or shapes do not match.

    Example:
        >>> mat = jax.experimental.sparse.bcsr_fromdense(jnp.eye(3))
        >>> jax.experimental.sparse.bcsr_concatenate([mat, mat], dimension=0)
        BCSR(float32[6, 3], nse=6)
    """
    operands = list(operands)
    if not all(isinstance(each, BCSR) for each in operands):
        raise ValueError(f"bcsr_concatenate: needs BCSR arrays, not {operands}")
    return BCSR.from_bcoo(bcoo_concatenate([each.to_bcoo() for each in operands], dimension=dimension))


def bcsr_dot_general(
    lhs: BCSR | ArrayLike,
    rhs: BCSR | ArrayLike,
    *,
    dimension_numbers: DimensionNumbers,
    precision: None = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Contract a sparse array with a dense one.

    Args:
        lhs, rhs: the operands, of which one is sparse.
        dimension_numbers: `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`, as for `lax.dot_general`.
        precision: not used.
        preferred_element_type: the dtype of the result; None is that of the promoted operands.
        out_sharding: must be None.

    Returns:
        The dense result.

    Raises:
        NotImplementedError: if both operands are sparse, or `out_sharding` is not None.
        TypeError: if neither operand is sparse, or the dims do not match.

    Example:
        >>> mat = jax.experimental.sparse.bcsr_fromdense(jnp.eye(2))
        >>> dims = (((1,), (0,)), ((), ()))
        >>> jax.experimental.sparse.bcsr_dot_general(mat, jnp.array([3.0, 4.0]), dimension_numbers=dims)
        Array([3., 4.], dtype=float32)
    """
    if isinstance(lhs, BCSR) and isinstance(rhs, BCSR):
        raise NotImplementedError("bcsr_dot_general: one operand must be dense; use `bcoo_dot_general` and `to_bcoo()`")
    left, right = (x.to_bcoo() if isinstance(x, BCSR) else x for x in (lhs, rhs))
    return bcoo_dot_general(  # type: ignore[return-value]
        left,
        right,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )
