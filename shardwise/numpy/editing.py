"""Elements put between others and left out: append, insert, delete, trim_zeros."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import Typed, is_integer
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.indexed import clamped
from shardwise.compiler.ops.indexing import as_index, dim_of, from_start
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed, dims_of, known, stretch, type_of
from shardwise.compiler.ops.shape import Iota, full
from shardwise.compiler.ops.slicing import Concatenate, along
from shardwise.numpy.indexing import nonzero, take
from shardwise.numpy.joining import concatenate
from shardwise.numpy.ordering import argsort, cumsum
from shardwise.numpy.shapes import moveaxis

_RUNS = 4  # how many slices are joined before places are looked up instead


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` after `arr` along `axis`; without one, the elements of both in one row.

    >>> jnp.append(jnp.array([1, 2]), 3)
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate([arr, values], axis)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """`arr` with `values` before the places `obj` along `axis`; without one, of the elements in a row.

    `obj` is an integer, a slice, or a row of integers, which may be of the program: one that is negative counts from
    the end, one outside is the nearest end. Values take the dtype of `arr`.

    >>> jnp.insert(jnp.array([1, 2, 3]), 1, 9)
    Array([1, 9, 2, 3], dtype=int32)
    """
    x, dim = _row_or_dim("insert", arr, axis)
    size = x.type.shape[dim]
    places = np.arange(*obj.indices(size)) if isinstance(obj, slice) else obj
    kind = type_of(places, "insert")
    if not is_integer(kind.dtype) or kind.ndim > 1:
        raise ValueError(f"insert: places are an integer, a slice or a row of integers, not {kind}")
    given = type_of(values, "insert")
    new = methods.reshape(values, shape=(1,) * (x.type.ndim - given.ndim) + given.shape)
    if not kind.ndim:
        new = moveaxis(new, 0, dim)
    count = new.type.shape[dim] if kind.size == 1 else kind.size
    shape = (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :])
    if kind.size == 1 and not isinstance(places, Typed):
        at = int(np.asarray(places).reshape(()))
        at = min(max(at + size * (at < 0), 0), size)
        return _spliced(x, new, at=at, dim=dim, shape=shape)
    return _placed(x, new, places, dim=dim, shape=shape)


def _row_or_dim(name: str, arr: Any, axis: int | None) -> tuple[Any, int]:
    x = as_operand(arr, name)
    if axis is None:
        return methods.reshape(x, shape=-1), 0
    return x, dim_of(name, axis, x.type.ndim)


@composed
def _spliced(x: Any, values: Any, *, at: int, dim: int, shape: tuple[int, ...]) -> Any:
    new = stretch(astype_weak(values, x.type.dtype, x.type.weak), shape)
    return Concatenate(dim)(along(x, dim, 0, at), new, along(x, dim, at, x.type.shape[dim]))


@composed
def _placed(x: Any, values: Any, places: Any, *, dim: int, shape: tuple[int, ...]) -> Any:
    """Both one after the other, from which each place of the result takes its element."""
    new = stretch(astype_weak(values, x.type.dtype, x.type.weak), shape)
    size, count = x.type.shape[dim], shape[dim]
    index = clamped(from_start(as_index(places), size), size)
    index = stretch(index, (count,)) if index.type.ndim else methods.broadcast_to(index, shape=(count,))
    number = Iota((count,), 0, index.type.dtype)()
    # Those before one place keep their order: the i-th in order moves i further.
    target = index + full((count,), 0, index.type.dtype).at[argsort(index)].set(number)
    nothing = full((size + count,), -1, index.type.dtype)
    found = nothing.at[target].set(number + size)
    is_old = methods.compare(found, 0, direction="LT")
    old = cumsum(methods.astype(is_old, dtype=index.type.dtype)) - 1
    return take(Concatenate(dim)(x, new), methods.where(is_old, old, found), dim, mode="clip")


def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Any:
    """`arr` without the elements at the places `obj` along `axis`; without one, of the elements in a row.

    `obj` is an integer, a slice, a row of integers or of booleans. How many places there are must be known: those of
    the program need the promise `assume_unique_indices`.

    >>> jnp.delete(jnp.array([1, 2, 3, 4]), jnp.array([0, 2]))
    Array([2, 4], dtype=int32)
    """
    x, dim = _row_or_dim("delete", arr, axis)
    size = x.type.shape[dim]
    if not isinstance(obj, slice):
        kind = type_of(obj, "delete")
        if kind.ndim > 1 or not (is_integer(kind.dtype) or kind.dtype == np.bool_):
            raise ValueError(f"delete: places are an integer, a slice, or a row of integers or booleans, not {kind}")
        if assume_unique_indices and is_integer(kind.dtype):
            return _without(x, obj, dim=dim, count=kind.size)
    unknown = (
        "nobody knows how many different places it has. If none repeats, promise it: "
        "`delete(arr, obj, assume_unique_indices=True)`"
    )
    places: Any = obj if isinstance(obj, slice) else known("delete", obj, unknown)
    is_row = isinstance(places, np.ndarray) and places.dtype != np.bool_ and places.size
    if is_row and (places.min() < -size or places.max() >= size):
        raise IndexError(f"delete: {places} is not inside of dim {dim} of {x.type}")
    return _kept(x, dim, np.delete(np.arange(size, dtype=np.int32), places))


def _kept(x: Any, dim: int, kept: Any) -> Any:
    """The elements at ascending places: slices where these are few, which a mesh moves less for."""
    breaks = (np.flatnonzero(np.diff(kept) != 1) + 1).tolist()
    if len(breaks) >= _RUNS:
        return take(x, kept, dim, mode="clip")
    runs = tuple((int(kept[a]), int(kept[b - 1]) + 1) for a, b in pairwise([0, *breaks, len(kept)]) if a < b)
    return _sliced(x, dim=dim, runs=runs or ((0, 0),))


@composed
def _sliced(x: Any, *, dim: int, runs: tuple[tuple[int, int], ...]) -> Any:
    parts = [along(x, dim, start, limit) for start, limit in runs]
    return Concatenate(dim)(*parts) if len(parts) > 1 else parts[0]


@composed
def _without(x: Any, places: Any, *, dim: int, count: int) -> Any:
    size = x.type.shape[dim]
    index = from_start(as_index(places), size)
    kept = full((size,), True, np.bool_).at[index].set(False)
    return take(x, nonzero(kept, size=size - count)[0], dim, mode="clip")


def trim_zeros(filt: Any, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Any:
    """`filt` without the zeros before the first other element (`trim` has "f") and after the last ("b").

    Along `axis`, one or several, slices that are all zeros count; without one, along all dims. What is zero must be
    known: an array of the program cannot be trimmed.

    >>> jnp.trim_zeros(jnp.array([0, 0, 1, 0, 2, 0]))
    Array([1, 0, 2], dtype=int32)
    """
    x = as_operand(filt, "trim_zeros")
    axes = range(x.type.ndim) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    dims = dims_of("trim_zeros", tuple(axes), x.type)
    unknown = "nobody knows which elements are zero, and the shape of the result"
    places = np.nonzero(known("trim_zeros", x, unknown))
    index = [slice(None)] * x.type.ndim
    for dim in dims:
        if not places[dim].size:
            index[dim] = slice(0, 0)
            continue
        first = int(places[dim].min()) if "f" in trim.lower() else 0
        last = int(places[dim].max()) + 1 if "b" in trim.lower() else x.type.shape[dim]
        index[dim] = slice(first, last)
    return x[tuple(index)]
