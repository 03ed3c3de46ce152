"""jax.experimental.sparse: matrices that store their nonzero elements only, as far as libraries use them.

`BCOO` holds the elements and their coordinates. Products with dense arrays look rows up, scale them and add them up.
They can be compiled, differentiated with respect to the elements and the dense operand, vmapped and sharded.
"""

import operator
from collections.abc import Sequence
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, DTypeLike


@final
class BCOO:
    """A sparse array in coordinate format.

    Elements with the same coordinates are added. Coordinates outside of the shape are ignored. The supported operations
    are products with dense arrays (`@`) and with numbers, `sum`, `transpose`, `todense` and negation.

    Args:
        args: the pair of the elements, a vector, and their coordinates, integers of shape (nse, rank); or a dense
            array.
        shape: the shape of the array. It is that of a dense array if None.
        indices_sorted: whether the coordinates are sorted; not used.
        unique_indices: whether the coordinates are unique; not used.

    Raises:
        TypeError: if a pair has no shape, or the coordinates are not integers.
        ValueError: if the elements and coordinates do not fit to each other or to the shape.

    Example:
        >>> matrix = jax.experimental.sparse.BCOO((jnp.array([2.0, 3.0]), jnp.array([[0, 1], [1, 0]])), shape=(2, 2))
        >>> matrix @ jnp.array([1.0, 10.0])
        Array([20.,  3.], dtype=float32)
    """

    data: Any
    indices: Any
    shape: tuple[int, ...]
    n_batch = 0
    n_dense = 0
    # numpy's operators leave products with such an array to the methods of this class.
    __array_priority__ = 100

    def __init__(
        self,
        args: ArrayLike | tuple[ArrayLike, ArrayLike],
        *,
        shape: Sequence[int] | None = None,
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:
        if not isinstance(args, tuple):
            dense = bcoo_fromdense(args)
            args, shape = (dense.data, dense.indices), dense.shape
        if shape is None:
            raise TypeError("BCOO: elements and coordinates need a shape: BCOO((data, indices), shape=(m, n))")
        self.data, self.indices = (as_operand(part, "BCOO") for part in args)
        self.shape = tuple(map(operator.index, shape))
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        if not jnp.issubdtype(self.indices.dtype, np.integer):
            raise TypeError(f"BCOO: coordinates must be integers, not {self.indices.dtype}")
        if self.indices.shape != (*self.data.shape, len(self.shape)) or self.data.ndim != 1:
            raise ValueError(
                f"BCOO: an array of shape {self.shape} needs elements of shape (n,) and coordinates of shape "
                f"(n, {len(self.shape)}), not {self.data.shape} and {self.indices.shape}"
            )

    @classmethod
    def fromdense(cls, mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> "BCOO":
        """Convert a dense array; see `bcoo_fromdense`."""
        return bcoo_fromdense(mat, nse=nse, index_dtype=index_dtype)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: DTypeLike | None = None) -> "BCOO":
        """Convert a sparse matrix of scipy.

        Args:
            mat: the matrix, in any format.
            index_dtype: the dtype of the coordinates; int32 if None.

        Returns:
            The sparse array.
        """
        coordinates = mat.tocoo()
        indices = np.stack([coordinates.row, coordinates.col], axis=1)
        return cls((jnp.asarray(coordinates.data), jnp.asarray(indices, index_dtype or np.int32)), shape=mat.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the dense array."""
        return int(np.prod(self.shape))

    @property
    def nse(self) -> int:
        """The number of elements that are stored."""
        return int(self.data.size)

    @property
    def n_sparse(self) -> int:
        """The number of axes with coordinates: all."""
        return self.ndim

    @property
    def T(self) -> "BCOO":
        """The transpose."""
        return self.transpose()

    def todense(self) -> Array:
        """Return the dense array."""
        zeros = jnp.zeros(self.shape, self.dtype)
        return zeros.at[tuple(self.indices[:, dim] for dim in range(self.ndim))].add(self.data, mode="drop")

    def transpose(self, axes: Sequence[int] | None = None) -> "BCOO":
        """Permute the axes; reverse them if `axes` is None."""
        order = tuple(range(self.ndim))[::-1] if axes is None else tuple(axis % self.ndim for axis in axes)
        columns = [self.indices[:, dim] for dim in order]
        return BCOO((self.data, jnp.stack(columns, axis=1)), shape=tuple(self.shape[dim] for dim in order))

    def sum(self, axis: int | None = None) -> Array:
        """Return the dense sum along an axis, or over all."""
        return self.todense().sum(axis)

    def astype(self, dtype: DTypeLike) -> "BCOO":
        """Convert the elements to another dtype."""
        return BCOO((self.data.astype(dtype), self.indices), shape=self.shape)

    def __matmul__(self, other: ArrayLike) -> Array:
        right = as_operand(other, "BCOO")
        if self.ndim != 2:
            raise NotImplementedError(f"BCOO: products need a matrix, not an array of shape {self.shape}")
        if right.ndim == 0 or right.shape[max(right.ndim - 2, 0)] != self.shape[1]:
            raise TypeError(f"BCOO: a matrix of shape {self.shape} and an array of shape {right.shape} have no product")
        if right.ndim == 1:
            return (self @ right[:, None])[:, 0]
        rows, columns = self.indices[:, 0], self.indices[:, 1]
        terms = jnp.take(right, columns, axis=-2, mode="fill", fill_value=0) * self.data[:, None]
        result = jnp.zeros((*right.shape[:-2], self.shape[0], right.shape[-1]), terms.dtype)
        return result.at[..., rows, :].add(terms, mode="drop")

    def __rmatmul__(self, other: ArrayLike) -> Array:
        left = as_operand(other, "BCOO")
        if left.ndim == 1:
            return self.T @ left
        return jnp.matrix_transpose(self.T @ jnp.matrix_transpose(left))

    def __mul__(self, other: ArrayLike) -> "BCOO":
        factor = as_operand(other, "BCOO")
        if factor.ndim:
            raise NotImplementedError("BCOO: elementwise products need a number; `x.todense() * y` is dense")
        return BCOO((self.data * factor, self.indices), shape=self.shape)

    __rmul__ = __mul__

    def __neg__(self) -> "BCOO":
        return BCOO((-self.data, self.indices), shape=self.shape)

    def __repr__(self) -> str:
        return f"BCOO({self.dtype}{list(self.shape)}, nse={self.nse})"


def _unflatten(shape: tuple[int, ...], children: tuple[Any, Any]) -> BCOO:
    """Return a sparse array with any children: transformations put other objects into pytrees than arrays."""
    result = object.__new__(BCOO)
    result.data, result.indices = children
    result.shape, result.indices_sorted, result.unique_indices = shape, False, False
    return result


register_pytree_node(BCOO, lambda x: ((x.data, x.indices), x.shape), _unflatten)


def bcoo_fromdense(mat: ArrayLike, *, nse: int | None = None, index_dtype: DTypeLike = np.int32) -> BCOO:
    """Convert a dense array to a sparse one.

    Args:
        mat: the array.
        nse: the number of elements to store. It must be given under `jit`; None counts the nonzero elements.
        index_dtype: the dtype of the coordinates.

    Returns:
        The sparse array. If it stores more elements than there are, the coordinates of the others are outside.

    Raises:
        ConcretizationTypeError: if `nse` is None and `mat` is traced.

    Example:
        >>> jax.experimental.sparse.bcoo_fromdense(jnp.array([[0.0, 2.0], [0.0, 0.0]]))
        BCOO(float32[2, 2], nse=1)
    """
    dense = as_operand(mat, "bcoo_fromdense")
    count = int(jnp.count_nonzero(dense)) if nse is None else nse
    coordinates = jnp.nonzero(dense, size=count, fill_value=dense.shape)
    data = dense.at[coordinates].get(mode="fill", fill_value=0)
    return BCOO((data, jnp.stack(coordinates, axis=-1).astype(index_dtype)), shape=dense.shape)


def bcoo_todense(mat: BCOO) -> Array:
    """Convert a sparse array to a dense one.

    Args:
        mat: the sparse array.

    Returns:
        The dense array.

    Raises:
        AttributeError: if `mat` is not sparse.

    Example:
        >>> jax.experimental.sparse.bcoo_todense(jax.experimental.sparse.bcoo_fromdense(jnp.eye(2)))
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return mat.todense()


def todense(arr: BCOO | Array) -> Array:
    """Convert a sparse array to a dense one; return a dense one unchanged.

    Args:
        arr: the array.

    Returns:
        The dense array.

    Raises:
        Nothing.

    Example:
        >>> jax.experimental.sparse.todense(jnp.ones(2))
        Array([1., 1.], dtype=float32)
    """
    return arr.todense() if isinstance(arr, BCOO) else arr


publish(__name__)
