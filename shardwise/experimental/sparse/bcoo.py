"""BCOO: sparse arrays in coordinate format, with batch dims and dense dims."""

import operator
from collections.abc import Sequence
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import lazy_module
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, resolve_array
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, DTypeLike, Index

# These modules construct BCOO arrays, so they import this one.
_conversion = lazy_module("shardwise.experimental.sparse.bcoo_conversion")
_creation = lazy_module("shardwise.experimental.sparse.creation")
_layout = lazy_module("shardwise.experimental.sparse.bcoo_layout")
_operators = lazy_module("shardwise.experimental.sparse.operators")
_shape = lazy_module("shardwise.experimental.sparse.bcoo_shape")


@final
class BCOO(JAXSparse):
    """A sparse array in batched coordinate format.

    The first `n_batch` dims of the array are batch dims, the last `n_dense` are dense, and those between are sparse.
    Every batch element stores the same number `nse` of elements, each of which is a dense block. Elements with the same
    coordinates are added. Elements with coordinates outside of the shape are padding, and are ignored.

    Args:
        args: the pair of the elements, of shape `(*batch, nse, *dense)`, and their coordinates, integers of shape
            `(*batch, nse, n_sparse)`; or a dense array. A batch dim of size 1 broadcasts.
        shape: the shape of the array. It is that of a dense array if None.
        indices_sorted: whether the coordinates are sorted lexicographically.
        unique_indices: whether no two elements have the same coordinates.

    Raises:
        TypeError: if a pair has no shape, or the coordinates are not integers.
        ValueError: if the shapes of the elements and coordinates do not match each other or the shape.

    Example:
        >>> matrix = jax.experimental.sparse.BCOO((jnp.array([2.0, 3.0]), jnp.array([[0, 1], [1, 0]])), shape=(2, 2))
        >>> matrix @ jnp.array([1.0, 10.0])
        Array([20.,  3.], dtype=float32)
    """

    indices: Any
    indices_sorted: bool
    unique_indices: bool
    _stored_batch: tuple[int, ...]

    def __init__(
        self,
        args: tuple[ArrayLike, ArrayLike] | ArrayLike,
        *,
        shape: Sequence[int] | None = None,
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:
        if not isinstance(args, (tuple, list)):
            dense = BCOO.fromdense(args)
            args, shape = (dense.data, dense.indices), dense.shape
            indices_sorted = unique_indices = True
        if shape is None:
            raise TypeError("BCOO: elements and coordinates need a shape: BCOO((data, indices), shape=(m, n))")
        self.data, self.indices = (_as_array(part) for part in args)
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
    ) -> "BCOO":
        """Convert a dense array; see `bcoo_fromdense`."""
        return _conversion.bcoo_fromdense(mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch)

    @classmethod
    def from_scipy_sparse(
        cls, mat: Any, *, index_dtype: DTypeLike | None = None, n_dense: int = 0, n_batch: int = 0
    ) -> "BCOO":
        """Convert a sparse matrix of scipy.

        Args:
            mat: the matrix, in any format.
            index_dtype: the dtype of the coordinates; int32 if None.
            n_dense: must be 0.
            n_batch: must be 0.

        Returns:
            The sparse array.

        Raises:
            NotImplementedError: if `n_dense` or `n_batch` is not 0.
        """
        if n_dense or n_batch:
            raise NotImplementedError("BCOO.from_scipy_sparse: n_dense and n_batch must be 0; use `update_layout`")
        coordinates = mat.tocoo()
        indices = np.stack([coordinates.row, coordinates.col], axis=1)
        return cls((jnp.asarray(coordinates.data), jnp.asarray(indices, index_dtype or np.int32)), shape=mat.shape)

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
    ) -> "BCOO":
        """Return an array without elements; all `nse` stored ones are padding."""
        shape = tuple(shape)
        batch, sparse, dense = split_shape("BCOO._empty", shape, n_batch, n_dense)
        indices = jnp.broadcast_to(jnp.asarray(sparse, index_dtype), (*batch, nse, len(sparse)))
        data = jnp.zeros((*batch, nse, *dense), dtype)
        return cls((data, indices), shape=shape, indices_sorted=True, unique_indices=True)

    @classmethod
    def _eye(
        cls,
        N: int,
        M: int,
        k: int,
        *,
        dtype: DTypeLike | None = None,
        index_dtype: DTypeLike = "int32",
        n_batch: int = 0,
        n_dense: int = 0,
    ) -> "BCOO":
        """Return a matrix with ones on the k-th diagonal."""
        return _creation.diagonal_matrix(N, M, k, dtype, index_dtype, n_batch, n_dense)

    @property
    def nse(self) -> int:
        """The number of elements that are stored, per batch element."""
        return self.indices.shape[-2]

    @property
    def n_batch(self) -> int:
        """The number of batch dims."""
        if self.indices.ndim < 2:
            raise ValueError(
                f"BCOO: coordinates need the shape (*batch, nse, n_sparse), not {self.indices.shape}. `vmap` and "
                "`scan` map batch dims only: the array needs n_batch > 0, as `BCOO.fromdense(x, n_batch=1)` has."
            )
        return self.indices.ndim - 2

    @property
    def n_sparse(self) -> int:
        """The number of sparse dims: those with coordinates."""
        return self.indices.shape[-1]

    @property
    def n_dense(self) -> int:
        """The number of dense dims."""
        return self.data.ndim - 1 - self.n_batch

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The sizes of the batch dims."""
        return self.shape[: self.n_batch]

    @property
    def sparse_shape(self) -> tuple[int, ...]:
        """The sizes of the sparse dims."""
        return self.shape[self.n_batch : self.n_batch + self.n_sparse]

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """The sizes of the dense dims."""
        return self.shape[self.n_batch + self.n_sparse :]

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self.data, self.indices

    def _layout_text(self) -> str:
        return layout_text(self.n_batch, self.n_dense)

    def to_bcoo(self) -> "BCOO":
        """Return the array itself."""
        return self

    def with_data(self, data: Any) -> "BCOO":
        """Return an array with other elements at the same coordinates."""
        return BCOO(
            (data, self.indices),
            shape=self.shape,
            indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )

    def expand_batch(self) -> "BCOO":
        """Return the array with batch dims of full size, in place of those of size 1 that broadcast."""
        batch, n_batch = self.batch_shape, self.n_batch
        if all(array.shape[:n_batch] == batch for array in self._arrays):
            return self
        data = jnp.broadcast_to(self.data, (*batch, *self.data.shape[n_batch:]))
        indices = jnp.broadcast_to(self.indices, (*batch, *self.indices.shape[n_batch:]))
        return BCOO(
            (data, indices),
            shape=self.shape,
            indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )

    def todense(self) -> Array:
        """Return the dense array."""
        return _conversion.bcoo_todense(self)

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> "BCOO":
        """Add elements with the same coordinates, and sort.

        Args:
            nse: the number of elements to store; None computes it, which needs concrete coordinates.
            remove_zeros: whether elements that are zero count as padding.

        Returns:
            An array with sorted, unique coordinates.
        """
        return _layout.sum_duplicates(self, nse, remove_zeros)

    def sort_indices(self) -> "BCOO":
        """Return the array with its elements in lexicographic order of their coordinates."""
        return _layout.bcoo_sort_indices(self)

    def update_layout(
        self, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error"
    ) -> "BCOO":
        """Return the array with other numbers of batch and dense dims; see `bcoo_update_layout`."""
        return _layout.bcoo_update_layout(self, n_batch=n_batch, n_dense=n_dense, on_inefficient=on_inefficient)

    def transpose(self, axes: Sequence[int] | None = None) -> "BCOO":
        """Permute the axes; reverse them if `axes` is None."""
        order = range(self.ndim)[::-1] if axes is None else [axis % self.ndim for axis in axes]
        return _shape.bcoo_transpose(self, permutation=order)

    def reshape(self, *args: Any, **kwargs: Any) -> "BCOO":
        """Return the array with another shape, which may not mix batch, sparse and dense dims."""
        return _operators.reshape(self, *args, **kwargs)

    def astype(self, *args: Any, **kwargs: Any) -> "BCOO":
        """Convert the elements to another dtype."""
        return _operators.astype(self, *args, **kwargs)

    def sum(self, *args: Any, **kwargs: Any) -> "BCOO | Array":
        """Return the sum along axes, or over all. It is dense if no sparse dim remains."""
        return _operators.sum(self, *args, **kwargs)

    def __getitem__(self, item: Index) -> "BCOO":
        return _operators.getitem(self, item)

    def __abs__(self) -> "BCOO":
        return _operators.absolute(self)

    def __neg__(self) -> "BCOO":
        return _operators.negative(self)

    def __pos__(self) -> "BCOO":
        return _operators.positive(self)

    def __matmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.matmul(self, other)

    def __rmatmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.matmul(other, self)

    def __mul__(self, other: "ArrayLike | JAXSparse") -> "BCOO":
        return _operators.multiply(self, other)

    def __rmul__(self, other: "ArrayLike | JAXSparse") -> "BCOO":
        return _operators.multiply(other, self)

    def __truediv__(self, other: "ArrayLike | JAXSparse") -> "BCOO":
        return _operators.divide(self, other)

    def __rtruediv__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.divide(other, self)

    def __add__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.add(self, other)

    def __radd__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.add(other, self)

    def __sub__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.subtract(self, other)

    def __rsub__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.subtract(other, self)

    def __pow__(self, other: "ArrayLike | JAXSparse") -> "BCOO":
        return _operators.power(self, other)

    def __rpow__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.power(other, self)

    def __gt__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.greater(self, other)

    def __ge__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.greater_equal(self, other)

    def __lt__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.less(self, other)

    def __le__(self, other: "ArrayLike | JAXSparse") -> Any:
        return _operators.less_equal(self, other)

    def __eq__(self, other: object) -> Any:
        return _operators.equal(self, other)

    def __ne__(self, other: object) -> Any:
        return _operators.not_equal(self, other)

    __hash__ = None


def layout_text(n_batch: int, n_dense: int) -> str:
    """Return the numbers of batch and dense dims as `repr` shows them, without those that are 0."""
    return (f", n_batch={n_batch}" if n_batch else "") + (f", n_dense={n_dense}" if n_dense else "")


def split_shape(
    name: str, shape: Sequence[int], n_batch: int, n_dense: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of the batch, sparse and dense dims. `name` is the calling function, for the error."""
    if n_batch < 0 or n_dense < 0 or n_batch + n_dense > len(shape):
        raise ValueError(
            f"{name}: n_batch={n_batch} and n_dense={n_dense} must not be negative, nor exceed the rank of shape "
            f"{tuple(shape)} together"
        )
    end = len(shape) - n_dense
    return tuple(shape[:n_batch]), tuple(shape[n_batch:end]), tuple(shape[end:])


def canonical_dims(name: str, mat: BCOO, dims: Sequence[int]) -> tuple[int, ...]:
    """Return dims counted from 0, sorted."""
    counted = [operator.index(dim) for dim in dims]
    if any(not -mat.ndim <= dim < mat.ndim for dim in counted):
        raise ValueError(f"{name}: a dim of {tuple(counted)} does not exist in {mat}")
    positive = sorted(dim % mat.ndim for dim in counted)
    if len(set(positive)) != len(positive):
        raise ValueError(f"{name}: a dim repeats in {tuple(counted)}")
    return tuple(positive)


def check_batch(name: str, arrays: Sequence[Any], batch: tuple[int, ...]) -> None:
    """Raise if the batch dims of the arrays of a sparse format do not broadcast to `batch`."""
    for array in arrays:
        sizes = array.shape[: len(batch)]
        if len(sizes) < len(batch) or any(size not in (1, full) for size, full in zip(sizes, batch, strict=True)):
            raise ValueError(
                f"{name}: an array of shape {array.shape} does not broadcast to the batch dims {batch} of the shape"
            )


def stored_batch(arrays: Sequence[Any], n_batch: int) -> tuple[int, ...]:
    """Return the batch dims of the arrays of a sparse format: 1 where all of them broadcast to its shape.

    Raises:
        ValueError: if the batch dims of the arrays do not broadcast to each other.
    """
    return np.broadcast_shapes(*(array.shape[:n_batch] for array in arrays))


def batch_after_mapping(
    batch: tuple[int, ...], stored_before: tuple[int, ...], stored: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the batch dims of a sparse array after a transformation has replaced the leaves of its pytree.

    `vmap` and `scan` remove or add a batch dim of every leaf, and `shard_map` divides them; the array's shape follows.
    Where the leaves of a batch dim have size 1, the shape alone says how far it broadcasts: it keeps its size, counted
    from the last batch dim.

    Args:
        batch: the batch dims of the shape before.
        stored_before: the batch dims of the leaves before.
        stored: the batch dims of the leaves now.
    """
    sizes = list(stored)
    for position in range(1, min(len(stored), len(batch)) + 1):
        if stored_before[-position] == stored[-position] == 1:
            sizes[-position] = batch[-position]
    return tuple(sizes)


def _as_array(part: Any) -> Array:
    part = resolve_array(part)
    return jnp.asarray(part) if isinstance(part, (list, tuple)) else as_operand(part, "BCOO")


def _check(mat: BCOO) -> None:
    """Raise if the elements and coordinates do not match each other or the shape."""
    if not jnp.issubdtype(mat.indices.dtype, np.integer):
        raise TypeError(f"BCOO: coordinates must be integers, not {mat.indices.dtype}")
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    rank, nse = len(mat.shape), mat.nse
    data_shape = mat.data.shape
    fits = len(data_shape) > n_batch and data_shape[n_batch] == nse and n_batch + n_sparse + mat.n_dense == rank
    if not fits or data_shape[n_batch + 1 :] != mat.dense_shape:
        raise ValueError(
            f"BCOO: an array of shape {mat.shape} needs elements of shape (*batch, nse, *dense) and coordinates of "
            f"shape (*batch, nse, n_sparse), where the batch, sparse and dense dims are those of the array; these have "
            f"the shapes {data_shape} and {mat.indices.shape}"
        )
    check_batch("BCOO", mat._arrays, mat.batch_shape)


def _flatten(mat: BCOO) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    return mat._arrays, (mat.shape, mat._stored_batch, mat.indices_sorted, mat.unique_indices)


def _unflatten(static: tuple[Any, ...], children: Any) -> BCOO:
    """Return a sparse array with any children: transformations put other objects into pytrees than arrays."""
    result = object.__new__(BCOO)
    result.data, result.indices = children
    result.shape, result._stored_batch, result.indices_sorted, result.unique_indices = static
    n_batch = getattr(result.indices, "ndim", 0) - 2
    if n_batch >= 0 and getattr(result.data, "ndim", 0) > n_batch:
        before = len(result._stored_batch)
        stored = stored_batch(children, n_batch)
        batch = batch_after_mapping(result.shape[:before], result._stored_batch, stored)
        result.shape, result._stored_batch = (*batch, *result.shape[before:]), stored
    return result


register_pytree_node(BCOO, _flatten, _unflatten)
