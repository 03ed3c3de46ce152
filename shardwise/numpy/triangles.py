"""Triangles and diagonals of matrices: tri, tril, triu, diag, diagonal, trace, fill_diagonal and their index functions.

Masks are computed by comparing iotas, so that on a mesh each device computes the mask of its own shard.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays import methods, reductions
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, as_strong, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Pad, slice_along
from shardwise.numpy.creation import arange, eye, ones
from shardwise.numpy.families import ARRAYS, NOT_AN_ARRAY, NOT_AN_INTEGER, TRACED_WITHOUT_SIZE
from shardwise.numpy.indexing import nonzero, take_along_axis
from shardwise.numpy.shapes import resize
from shardwise.typing import ArrayLike, DTypeLike, SupportsShape

_DIAGONAL = Parameter("the diagonal: 0 is the main one, positive numbers are above it.", NOT_AN_INTEGER)
_MATRICES = ARRAYS.extended(
    {
        "m": Parameter("a matrix or a batch of matrices.", NOT_AN_ARRAY),
        "v": Parameter("the elements of the diagonal (1 dim), or a matrix (2 dims).", NOT_AN_ARRAY),
        "a": Parameter("the array, with at least 2 dims.", NOT_AN_ARRAY),
        "k": _DIAGONAL,
        "offset": _DIAGONAL,
        "axis1, axis2": "the dims of `a` that are the rows and the columns of the matrices.",
    }
)
_TRIANGLE = _MATRICES.extended(raises=["ValueError: if `m` has fewer than 2 dims."])
_INDICES = Family(
    {
        "n": Parameter("the number of rows.", NOT_AN_INTEGER),
        "k": _DIAGONAL,
        "m": "the number of columns. By default `n`.",
        "size": Parameter("the number of indices to return, padded with 0. Required under `jit`.", TRACED_WITHOUT_SIZE),
    },
    returns="A tuple of row indices and column indices.",
)
_INDICES_FROM = Family(
    {
        "arr": Parameter("the matrix. Only its shape is used.", "TypeError: if {} has no shape."),
        "k": _DIAGONAL,
    },
    returns="A tuple of row indices and column indices.",
    raises=["ValueError: if `arr` does not have 2 dims."],
)

_INDEX = np.dtype(np.int32)


def _band_mask(shape: tuple[int, ...], k: ArrayLike, direction: str) -> Any:
    """Return the mask of the elements of matrices whose column compares with `row + k` as `direction` says."""
    rows, columns = (Iota(shape, len(shape) - back, _INDEX)() for back in (2, 1))
    offset = full(shape, k, _INDEX) if isinstance(k, int) else Broadcast(shape, ())(k)
    return Compare(direction)(columns, Add()(rows, offset))


@documented(_MATRICES, returns="The matrix.")
def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Create a matrix with ones on and below a diagonal, and zeros above it.

    Args:
        N: the number of rows.
        M: the number of columns. By default `N`.
        dtype: the dtype of the result. By default, the default float.

    Raises:
        TypeError: if a size or `k` is not an integer, or a size is negative.

    Example:
        >>> jnp.tri(2, 3, dtype=jnp.int32)
        Array([[1, 0, 0],
               [1, 1, 0]], dtype=int32)
    """
    shape = (operator.index(N), operator.index(N if M is None else M))
    result_dtype = default_dtype("float*") if dtype is None else requested_dtype("tri", dtype)
    return _tri(shape=shape, k=operator.index(k), dtype=result_dtype)


@compiled_function
def _tri(*, shape: tuple[int, int], k: int, dtype: np.dtype[Any]) -> Any:
    return astype_weak(_band_mask(shape, k, "LE"), dtype, False)


@documented(_TRIANGLE, returns="The lower triangle of each matrix.")
def tril(m: ArrayLike, k: int = 0) -> Array:
    """Set the elements above a diagonal to zero.

    Example:
        >>> jnp.tril(jnp.array([[1, 2], [3, 4]]))
        Array([[1, 0],
               [3, 4]], dtype=int32)
    """
    return _triangle(_checked_matrices("tril", m), k=operator.index(k), direction="LE")


@documented(_TRIANGLE, returns="The upper triangle of each matrix.")
def triu(m: ArrayLike, k: int = 0) -> Array:
    """Set the elements below a diagonal to zero.

    Example:
        >>> jnp.triu(jnp.array([[1, 2], [3, 4]]))
        Array([[1, 2],
               [0, 4]], dtype=int32)
    """
    return _triangle(_checked_matrices("triu", m), k=operator.index(k), direction="GE")


def _checked_matrices(name: str, m: ArrayLike) -> Any:
    if type_of(m, name).ndim < 2:
        raise ValueError(f"{name}: needs an array of 2 or more dims, not {type_of(m)}")
    return m


@compiled_function
def _triangle(x: ArrayLike, *, k: int, direction: str) -> Any:
    x = as_operand(x)
    return Select()(_band_mask(x.type.shape, k, direction), x, full(x.type.shape, 0, x.type.dtype, x.type.weak))


@documented(_INDICES)
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices of the lower triangle of a matrix.

    Args:
        k: the highest diagonal that is included: 0 is the main one, positive numbers are above it.

    Example:
        >>> jnp.tril_indices(2)
        (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return _as_index_arrays(np.tril_indices(operator.index(n), operator.index(k), m))


@documented(_INDICES)
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices of the upper triangle of a matrix.

    Args:
        k: the lowest diagonal that is included: 0 is the main one, positive numbers are above it.

    Example:
        >>> jnp.triu_indices(2)
        (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return _as_index_arrays(np.triu_indices(operator.index(n), operator.index(k), m))


def _as_index_arrays(indices: tuple[Any, Any]) -> tuple[Any, Any]:
    rows, columns = (as_operand(index.astype(default_dtype("int*"))) for index in indices)
    return rows, columns


@documented(_INDICES_FROM)
def tril_indices_from(arr: ArrayLike | SupportsShape, k: int = 0) -> tuple[Array, Array]:
    """Return the indices of the lower triangle of a given matrix.

    Args:
        k: the highest diagonal that is included: 0 is the main one, positive numbers are above it.

    Example:
        >>> jnp.tril_indices_from(jnp.ones((2, 2)))
        (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


@documented(_INDICES_FROM)
def triu_indices_from(arr: ArrayLike | SupportsShape, k: int = 0) -> tuple[Array, Array]:
    """Return the indices of the upper triangle of a given matrix.

    Args:
        k: the lowest diagonal that is included: 0 is the main one, positive numbers are above it.

    Example:
        >>> jnp.triu_indices_from(jnp.ones((2, 2)))
        (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def _matrix_shape(name: str, arr: ArrayLike | SupportsShape) -> tuple[int, ...]:
    shape = tuple(arr.shape) if hasattr(arr, "shape") else type_of(arr, name).shape
    if len(shape) != 2:
        raise ValueError(f"{name}: needs a matrix, not an array of shape {shape}")
    return shape


@documented(_INDICES, raises=["TypeError: if `n` is not an integer.", "ValueError: if `n` is negative."])
def mask_indices(
    n: int, mask_func: Callable[[Any, int], Any], k: int = 0, *, size: int | None = None
) -> tuple[Array, Array]:
    """Return the indices of the elements of a square matrix that a mask function keeps.

    Args:
        n: the number of rows and columns.
        mask_func: a function of a matrix and `k`, such as `triu`. It is called with a matrix of ones, and the nonzero
            elements of its result are those that are kept.
        k: the second argument of `mask_func`.

    Example:
        >>> jnp.mask_indices(2, jnp.triu)
        (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    rows, columns = nonzero(mask_func(ones((n, n)), k), size=size)
    return rows, columns


def identity(n: int, dtype: DTypeLike | None = None) -> Array:
    """Create a square identity matrix.

    Args:
        n: the number of rows and columns.
        dtype: the dtype of the result. By default, the default float.

    Returns:
        The matrix.

    Raises:
        TypeError: if `n` is not an integer, or `dtype` is unknown.
        ValueError: if `n` is negative.

    Example:
        >>> jnp.identity(2)
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return eye(n, dtype=dtype)


@documented(_MATRICES, returns="A square matrix if `v` has 1 dim, or the diagonal of `v` if it has 2.")
def diag(v: ArrayLike, k: int = 0) -> Array:
    """Create a matrix from its diagonal, or extract a diagonal of a matrix.

    Raises:
        ValueError: if `v` does not have 1 or 2 dims.

    Example:
        >>> jnp.diag(jnp.array([1, 2]))
        Array([[1, 0],
               [0, 2]], dtype=int32)
    """
    rank = type_of(v, "diag").ndim
    if rank not in (1, 2):
        raise ValueError(f"diag: needs an array of 1 or 2 dims, not {type_of(v)}")
    return _diagonal_matrix(v, k=operator.index(k)) if rank == 1 else diagonal(v, operator.index(k))


@documented(_MATRICES, returns="A square matrix.")
def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """Create a matrix with the flattened elements of an array on a diagonal.

    Args:
        v: the elements of the diagonal, of any shape.

    Example:
        >>> jnp.diagflat(jnp.array([[1], [2]]))
        Array([[1, 0],
               [0, 2]], dtype=int32)
    """
    return _diagonal_matrix(as_strong(methods.reshape(v, shape=-1)), k=operator.index(k))


@compiled_function
def _diagonal_matrix(row: ArrayLike, *, k: int) -> Any:
    x = as_operand(row, "diag")
    zero = full((), 0, x.type.dtype, x.type.weak)
    size = x.type.size + abs(k)
    padded = Pad((0,), (abs(k),), (0,))(x, zero) if k else x
    shape = (size, size)
    values = Broadcast(shape, (0 if k >= 0 else 1,))(padded)
    return Select()(_band_mask(shape, k, "EQ"), values, Broadcast(shape, ())(zero))


@documented(_MATRICES, returns="The diagonals, as the last dim after the remaining dims of `a`.")
def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Extract a diagonal of matrices.

    Raises:
        ValueError: if `a` has fewer than 2 dims, or `axis1` and `axis2` are not two different dims of it.

    Example:
        >>> jnp.diagonal(jnp.array([[1, 2, 3], [4, 5, 6]]), offset=1)
        Array([2, 6], dtype=int32)
    """
    a_type = type_of(a, "diagonal")
    if a_type.ndim < 2:
        raise ValueError(f"diagonal: needs an array of 2 or more dims, not {a_type}")
    return _diagonal(a, offset=operator.index(offset), dims=_matrix_dims("diagonal", axis1, axis2, a_type.ndim))


def _matrix_dims(name: str, axis1: int, axis2: int, rank: int) -> tuple[int, int]:
    rows, columns = (canonical_axis(name, axis, rank) for axis in (axis1, axis2))
    if rows == columns:
        raise ValueError(f"{name}: axis1 and axis2 are both dim {rows}")
    return rows, columns


def _move_last(x: Array, dims: tuple[int, int]) -> Array:
    return permute(x, (*(dim for dim in range(x.type.ndim) if dim not in dims), *dims))


@compiled_function
def _diagonal(x: ArrayLike, *, offset: int, dims: tuple[int, int]) -> Any:
    x = _move_last(as_operand(x), dims)
    *batch, rows, columns = x.type.shape
    first = max(0, -offset)
    count = max(0, min(rows - first, columns - max(0, offset)))
    if not count:
        return full((*batch, 0), 0, x.type.dtype, x.type.weak)
    x = slice_along(x, len(batch), first, first + count)
    column = Add()(Iota((count, 1), 0, _INDEX)(), full((count, 1), max(0, offset), _INDEX))
    index = Reshape((*(1,) * len(batch), count, 1))(column)
    return Reshape((*batch, count))(take_along_axis(x, index, -1, mode="clip"))


@documented(_MATRICES, returns="The sums, with the remaining dims of `a`.")
def trace(
    a: ArrayLike,
    offset: ArrayLike = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
    out: None = None,
) -> Array:
    """Sum the elements of a diagonal of matrices.

    Args:
        offset: the diagonal: 0 is the main one, positive numbers are above it. It may be traced.
        dtype: the dtype of the sum. By default, as for `sum`.

    Raises:
        ValueError: if `axis1` and `axis2` are not two different dims of `a`.

    Example:
        >>> jnp.trace(jnp.array([[1, 2], [3, 4]]))
        Array(5, dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("trace: arrays are immutable, so `out` must be None")
    if not is_integer(type_of(offset, "trace").dtype):
        raise TypeError(f"trace: offset must be an integer, not {offset!r}")
    dims = _matrix_dims("trace", axis1, axis2, type_of(a, "trace").ndim)
    return _trace(a, offset, dims=dims, dtype=requested_dtype("trace", dtype))


@compiled_function
def _trace(x: ArrayLike, offset: ArrayLike, *, dims: tuple[int, int], dtype: np.dtype[Any]) -> Any:
    x = _move_last(as_operand(x), dims)
    on_diagonal = _band_mask(x.type.shape, astype_weak(as_operand(offset), _INDEX, False), "EQ")
    masked = Select()(on_diagonal, x, full(x.type.shape, 0, x.type.dtype, x.type.weak))
    return reductions.sum(masked, axis=(-2, -1), dtype=dtype)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of an array whose dims have equal sizes.

    Args:
        n: the size of each dim.
        ndim: the number of dims.

    Returns:
        A tuple with one index array per dim.

    Raises:
        TypeError: if `n` or `ndim` is not an integer.
        ValueError: if `n` or `ndim` is negative.

    Example:
        >>> jnp.diag_indices(2)
        (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    if min(operator.index(n), operator.index(ndim)) < 0:
        raise ValueError(f"diag_indices: n and ndim cannot be negative: {n} and {ndim}")
    return (arange(operator.index(n)),) * operator.index(ndim)


@documented(ARRAYS, returns="A tuple with one index array per dim.")
def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of a given array.

    Args:
        arr: the array, with at least 2 dims of equal sizes.

    Raises:
        ValueError: if `arr` has fewer than 2 dims, or dims of different sizes.

    Example:
        >>> jnp.diag_indices_from(jnp.ones((2, 2)))
        (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    arr_type = type_of(arr, "diag_indices_from")
    if arr_type.ndim < 2 or len(set(arr_type.shape)) > 1:
        raise ValueError(f"diag_indices_from: needs 2 or more dims of equal sizes, not {arr_type}")
    return diag_indices(arr_type.shape[0], arr_type.ndim)


def fill_diagonal(a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True) -> Array:
    """Return an array with new elements on its main diagonal.

    Args:
        a: a matrix, or an array of more dims of equal sizes.
        val: a scalar, or an array whose flattened elements are repeated along the diagonal.
        wrap: not supported. It must be False.
        inplace: must be False, because arrays are immutable.

    Returns:
        The array with the diagonal replaced, in the dtype of `a`.

    Raises:
        TypeError: if `a` or `val` is not an array or a scalar.
        ValueError: if `a` has fewer than 2 dims, or more than 2 of different sizes, or `val` is empty.
        NotImplementedError: if `inplace` or `wrap` is true.

    Example:
        >>> jnp.fill_diagonal(jnp.zeros((2, 2)), 5, inplace=False)
        Array([[5., 0.],
               [0., 5.]], dtype=float32)
    """
    if inplace:
        raise NotImplementedError("fill_diagonal: arrays are immutable; pass `inplace=False` and use the result")
    if wrap:
        raise NotImplementedError("fill_diagonal: `wrap=True` is not supported")
    a_type = type_of(a, "fill_diagonal")
    if a_type.ndim < 2 or (a_type.ndim > 2 and len(set(a_type.shape)) > 1):
        raise ValueError(f"fill_diagonal: needs a matrix, or 3 or more dims of equal sizes, not {a_type}")
    if type_of(val, "fill_diagonal").size == 0:
        raise ValueError(f"fill_diagonal: val {type_of(val)} is empty; {a_type} needs at least one element")
    values = resize(val, (a_type.shape[0],)) if type_of(val).ndim else val
    return _fill_diagonal(a, values)


@compiled_function
def _fill_diagonal(x: ArrayLike, values: ArrayLike) -> Any:
    x = as_operand(x)
    shape = x.type.shape
    new = astype_weak(as_operand(values), x.type.dtype, x.type.weak)
    indices = [Iota(shape, dim, _INDEX)() for dim in range(len(shape))]
    on_diagonal = Compare("EQ")(indices[0], indices[1])
    for index in indices[2:]:
        on_diagonal = And()(on_diagonal, Compare("EQ")(indices[0], index))
    return Select()(on_diagonal, Broadcast(shape, tuple(range(new.type.ndim)))(new), x)
