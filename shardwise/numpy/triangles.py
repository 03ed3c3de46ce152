"""Triangles and diagonals of matrices. What lies where is asked of the indices of each element, so that on a mesh every
device answers for its own piece.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import is_integer
from shardwise.compiler.ops import along_axes, methods
from shardwise.compiler.ops.bitwise import And
from shardwise.compiler.ops.elementwise import Add, Compare, Select
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full, permuted
from shardwise.compiler.ops.slicing import Pad, along
from shardwise.numpy.creation import arange, eye, ones
from shardwise.numpy.indexing import nonzero, take_along_axis
from shardwise.numpy.shapes import resize

_INDEX = np.dtype(np.int32)


def _band(shape: tuple[int, ...], k: Any, direction: str) -> Any:
    """Whether the column of each element of matrices is so, compared with its row and `k`."""
    rows, columns = (Iota(shape, len(shape) - back, _INDEX)() for back in (2, 1))
    by = full(shape, k, _INDEX) if isinstance(k, int) else Broadcast(shape, ())(k)
    return Compare(direction)(columns, Add()(rows, by))


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """A matrix with ones on the diagonal `k` and below it, zeros above.

    >>> jnp.tri(2, 3, dtype=jnp.int32)
    Array([[1, 0, 0],
           [1, 1, 0]], dtype=int32)
    """
    shape = (operator.index(N), operator.index(N if M is None else M))
    wanted = default_dtype("float*") if dtype is None else canonical_dtype(dtype)
    return _tri(shape=shape, k=operator.index(k), dtype=wanted)


@composed
def _tri(*, shape: tuple[int, int], k: int, dtype: Any) -> Any:
    return astype_weak(_band(shape, k, "LE"), dtype, False)


def tril(m: Any, k: int = 0) -> Any:
    """Matrices with zeros above the diagonal `k`.

    >>> jnp.tril(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 0],
           [3, 4]], dtype=int32)
    """
    return _triangle(_matrices("tril", m), k=operator.index(k), direction="LE")


def triu(m: Any, k: int = 0) -> Any:
    """Matrices with zeros below the diagonal `k`.

    >>> jnp.triu(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 2],
           [0, 4]], dtype=int32)
    """
    return _triangle(_matrices("triu", m), k=operator.index(k), direction="GE")


def _matrices(name: str, m: Any) -> Any:
    if type_of(m, name).ndim < 2:
        raise ValueError(f"{name}: needs an array of 2 or more dims, not {type_of(m)}")
    return m


@composed
def _triangle(x: Any, *, k: int, direction: str) -> Any:
    x = as_operand(x)
    return Select()(_band(x.type.shape, k, direction), x, full(x.type.shape, 0, x.type.dtype, x.type.weak))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Where in a matrix of `n` rows and `m` columns (`n`, if not given) the diagonal `k` and what is below it lie.

    >>> jnp.tril_indices(2)
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return _indices(np.tril_indices(operator.index(n), operator.index(k), m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Where in a matrix of `n` rows and `m` columns (`n`, if not given) the diagonal `k` and what is above it lie.

    >>> jnp.triu_indices(2)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return _indices(np.triu_indices(operator.index(n), operator.index(k), m))


def _indices(found: tuple[Any, Any]) -> tuple[Any, Any]:
    rows, columns = (as_operand(places.astype(default_dtype("int*"))) for places in found)
    return rows, columns


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`tril_indices` of a matrix like `arr`.

    >>> jnp.tril_indices_from(jnp.ones((2, 2)))
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`triu_indices` of a matrix like `arr`.

    >>> jnp.triu_indices_from(jnp.ones((2, 2)))
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def _matrix_shape(name: str, arr: Any) -> tuple[int, ...]:
    shape = tuple(arr.shape) if hasattr(arr, "shape") else type_of(arr, name).shape
    if len(shape) != 2:
        raise ValueError(f"{name}: needs a matrix, not an array of shape {shape}")
    return shape


def mask_indices(
    n: int, mask_func: Callable[[Any, int], Any], k: int = 0, *, size: int | None = None
) -> tuple[Any, Any]:
    """Where `mask_func(matrix, k)`, such as `triu`, leaves something of a matrix of `n` rows and columns of ones.

    >>> jnp.mask_indices(2, jnp.triu)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    rows, columns = nonzero(mask_func(ones((n, n)), k), size=size)
    return rows, columns


def identity(n: int, dtype: Any = None) -> Any:
    """A square matrix with ones on the diagonal, zeros elsewhere.

    >>> jnp.identity(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return eye(n, dtype=dtype)


def diag(v: Any, k: int = 0) -> Any:
    """A matrix with the row `v` on its diagonal `k`; of a matrix, its diagonal `k`.

    >>> jnp.diag(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    rank = type_of(v, "diag").ndim
    if rank not in (1, 2):
        raise ValueError(f"diag: needs a row or a matrix, not {type_of(v)}")
    return _matrix(v, k=operator.index(k)) if rank == 1 else diagonal(v, operator.index(k))


def diagflat(v: Any, k: int = 0) -> Any:
    """A matrix with all elements of `v` in a row on its diagonal `k`.

    >>> jnp.diagflat(jnp.array([[1], [2]]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    return _matrix(methods.reshape(v, shape=-1), k=operator.index(k))


@composed
def _matrix(row: Any, *, k: int) -> Any:
    x = as_operand(row, "diag")
    zero = full((), 0, x.type.dtype, x.type.weak)
    size = x.type.size + abs(k)
    whole = Pad((0,), (abs(k),), (0,))(x, zero) if k else x
    shape = (size, size)
    spread = Broadcast(shape, (0 if k >= 0 else 1,))(whole)
    return Select()(_band(shape, k, "EQ"), spread, Broadcast(shape, ())(zero))


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonal `offset` of the matrices along two axes, as the last dim of the result.

    >>> jnp.diagonal(jnp.array([[1, 2, 3], [4, 5, 6]]), offset=1)
    Array([2, 6], dtype=int32)
    """
    kind = type_of(a, "diagonal")
    if kind.ndim < 2:
        raise ValueError(f"diagonal: needs an array of 2 or more dims, not {kind}")
    return _diagonal(a, offset=operator.index(offset), dims=_plane("diagonal", axis1, axis2, kind.ndim))


def _plane(name: str, axis1: int, axis2: int, rank: int) -> tuple[int, int]:
    one, two = (dim_of(name, axis, rank) for axis in (axis1, axis2))
    if one == two:
        raise ValueError(f"{name}: axis1 and axis2 are both dim {one}")
    return one, two


def _last(x: Any, dims: tuple[int, int]) -> Any:
    """`x` with these two dims last."""
    return permuted(x, (*(dim for dim in range(x.type.ndim) if dim not in dims), *dims))


@composed
def _diagonal(x: Any, *, offset: int, dims: tuple[int, int]) -> Any:
    x = _last(as_operand(x), dims)
    *lead, rows, columns = x.type.shape
    first = max(0, -offset)
    count = max(0, min(rows - first, columns - max(0, offset)))
    if not count:
        return full((*lead, 0), 0, x.type.dtype, x.type.weak)
    x = along(x, len(lead), first, first + count)
    index = Add()(Iota((count, 1), 0, _INDEX)(), full((count, 1), max(0, offset), _INDEX))
    at = Reshape((*(1,) * len(lead), count, 1))(index)
    return Reshape((*lead, count))(take_along_axis(x, at, -1, mode="clip"))


def trace(a: Any, offset: Any = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
    """The sum of the diagonal `offset` of the matrices along two axes; the offset may be of the program.

    >>> jnp.trace(jnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("trace: arrays are not written to, so `out` must be None")
    if not is_integer(type_of(offset, "trace").dtype):
        raise TypeError(f"trace: offset must be an integer, not {offset!r}")
    dims = _plane("trace", axis1, axis2, type_of(a, "trace").ndim)
    return _trace(a, offset, dims=dims, dtype=dtype)


@composed
def _trace(x: Any, offset: Any, *, dims: tuple[int, int], dtype: Any) -> Any:
    x = _last(as_operand(x), dims)
    on = _band(x.type.shape, astype_weak(as_operand(offset), _INDEX, False), "EQ")
    kept = Select()(on, x, full(x.type.shape, 0, x.type.dtype, x.type.weak))
    return along_axes.sum(kept, axis=(-2, -1), dtype=dtype)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """Where the main diagonal of an array lies that has `ndim` dims of size `n`: an index for each dim.

    >>> jnp.diag_indices(2)
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    if min(operator.index(n), operator.index(ndim)) < 0:
        raise ValueError(f"diag_indices: n and ndim cannot be negative: {n} and {ndim}")
    return (arange(operator.index(n)),) * operator.index(ndim)


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """`diag_indices` of an array like `arr`, whose dims have one size.

    >>> jnp.diag_indices_from(jnp.ones((2, 2)))
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    kind = type_of(arr, "diag_indices_from")
    if kind.ndim < 2 or len(set(kind.shape)) > 1:
        raise ValueError(f"diag_indices_from: needs 2 or more dims of one size, not {kind}")
    return diag_indices(kind.shape[0], kind.ndim)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Any:
    """`a` with `val` on its main diagonal: a number, or elements that are taken in a row, over and over.

    Arrays are not written to: say `inplace=False`.

    >>> jnp.fill_diagonal(jnp.zeros((2, 2)), 5, inplace=False)
    Array([[5., 0.],
           [0., 5.]], dtype=float32)
    """
    if inplace:
        raise NotImplementedError("fill_diagonal: arrays are not written to: use the result, with `inplace=False`")
    if wrap:
        raise NotImplementedError("fill_diagonal: a diagonal that begins again below (`wrap`) is not supported")
    kind = type_of(a, "fill_diagonal")
    if kind.ndim < 2 or (kind.ndim > 2 and len(set(kind.shape)) > 1):
        raise ValueError(f"fill_diagonal: needs a matrix, or 3 or more dims of one size, not {kind}")
    if type_of(val, "fill_diagonal").size == 0:
        raise ValueError(f"fill_diagonal: {type_of(val)} has no elements to fill {kind} with")
    values = resize(val, (kind.shape[0],)) if type_of(val).ndim else val
    return _filled(a, values)


@composed
def _filled(x: Any, values: Any) -> Any:
    x = as_operand(x)
    shape = x.type.shape
    new = astype_weak(as_operand(values), x.type.dtype, x.type.weak)
    places = [Iota(shape, dim, _INDEX)() for dim in range(len(shape))]
    on = Compare("EQ")(places[0], places[1])
    for other in places[2:]:
        on = And()(on, Compare("EQ")(places[0], other))
    return Select()(on, Broadcast(shape, tuple(range(new.type.ndim)))(new), x)
