"""Insertion and removal of elements: append, insert, delete, trim_zeros."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.indexing import as_index, canonical_axis, wrap_negative_index
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_to_shape,
    canonical_axes,
    compiled_function,
    concrete_value,
    type_of,
)
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ir.types import Typed
from shardwise.compiler.ops.indexing.index_vectors import clamp_index
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.numpy.families import ONE_AXIS
from shardwise.numpy.indexing import nonzero, take
from shardwise.numpy.joining import concatenate
from shardwise.numpy.ordering import argsort, cumsum
from shardwise.numpy.shapes import moveaxis
from shardwise.typing import ArrayLike

_MAX_SLICES = 4  # `delete` with more slices to keep than this uses a gather


@documented(ONE_AXIS, returns="The concatenated array.")
def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """Append values to the end of an array.

    Args:
        values: the array to append.
        axis: the axis to concatenate along; if None, both arrays are flattened first.

    Raises:
        TypeError: if the shapes differ in another dim than `axis`.

    Example:
        >>> jnp.append(jnp.array([1, 2]), 3)
        Array([1, 2, 3], dtype=int32)
    """
    return concatenate([arr, values], axis)


@documented(ONE_AXIS, returns="A new array with the values inserted.")
def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Array:
    """Insert values before the given indices.

    Args:
        obj: the index or indices before which to insert: an integer, a slice, or a 1-D integer array, which may be
            traced. Negative indices count from the end, and indices out of bounds are clamped.
        values: the values to insert, broadcast and cast to the dtype of `arr`.
        axis: the axis to insert along; if None, `arr` is flattened first.

    Raises:
        ValueError: if `obj` is not of integers or has rank 2 or more, or if `axis` is out of bounds.
        TypeError: if the values do not broadcast.

    Example:
        >>> jnp.insert(jnp.array([1, 2, 3]), 1, 9)
        Array([1, 9, 2, 3], dtype=int32)
    """
    x, dim = _flat_or_dim("insert", arr, axis)
    size = x.type.shape[dim]
    indices = np.arange(*obj.indices(size)) if isinstance(obj, slice) else obj
    index_type = type_of(indices, "insert")
    if not is_integer(index_type.dtype) or index_type.ndim > 1:
        raise ValueError(f"insert: indices must be an integer, a slice or a 1-D integer array, not {index_type}")
    value_type = type_of(values, "insert")
    new = methods.reshape(values, shape=(1,) * (x.type.ndim - value_type.ndim) + value_type.shape)
    if not index_type.ndim:
        new = moveaxis(new, 0, dim)
    count = new.type.shape[dim] if index_type.size == 1 else index_type.size
    shape = (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :])
    if index_type.size == 1 and not isinstance(indices, Typed):
        at = int(np.asarray(indices).reshape(()))
        at = min(max(at + size * (at < 0), 0), size)
        return _insert_at_one(x, new, at=at, dim=dim, shape=shape)
    return _insert_at_many(x, new, indices, dim=dim, shape=shape)


def _flat_or_dim(name: str, arr: ArrayLike, axis: int | None) -> tuple[Any, int]:
    """Return the array and its dim `axis`; without an axis, the flattened array and dim 0."""
    x = as_operand(arr, name)
    if axis is None:
        return methods.reshape(x, shape=-1), 0
    return x, canonical_axis(name, axis, x.type.ndim)


@compiled_function
def _insert_at_one(x: Array, values: Array, *, at: int, dim: int, shape: tuple[int, ...]) -> Any:
    new = broadcast_to_shape(astype_weak(values, x.type.dtype, x.type.weak), shape)
    return Concatenate(dim)(slice_along(x, dim, 0, at), new, slice_along(x, dim, at, x.type.shape[dim]))


@compiled_function
def _insert_at_many(x: Array, values: Array, indices: ArrayLike, *, dim: int, shape: tuple[int, ...]) -> Any:
    """Concatenate array and values, then gather the elements in their final order."""
    new = broadcast_to_shape(astype_weak(values, x.type.dtype, x.type.weak), shape)
    size, count = x.type.shape[dim], shape[dim]
    index = clamp_index(wrap_negative_index(as_index(indices), size), size)
    index = broadcast_to_shape(index, (count,)) if index.type.ndim else methods.broadcast_to(index, shape=(count,))
    number = Iota((count,), 0, index.type.dtype)()
    # In sorted order, i values are inserted before the i-th one. Values with equal indices keep their order.
    target = index + full((count,), 0, index.type.dtype).at[argsort(index)].set(number)
    unset = full((size + count,), -1, index.type.dtype)
    source = unset.at[target].set(number + size)
    is_old = methods.compare(source, 0, direction="LT")
    old = cumsum(methods.astype(is_old, dtype=index.type.dtype)) - 1
    return take(Concatenate(dim)(x, new), methods.where(is_old, old, source), dim, mode="clip")


@documented(ONE_AXIS, returns="A new array without these elements.")
def delete(arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """Return an array without the elements at the given indices.

    The size of the result depends on the number of distinct indices. So traced indices require
    `assume_unique_indices`.

    Args:
        obj: the indices to delete: an integer, a slice, a 1-D integer array or a 1-D boolean mask.
        axis: the axis to delete along; if None, `arr` is flattened first.
        assume_unique_indices: promise that integer indices do not repeat.

    Raises:
        ValueError: if `obj` is of another dtype or rank, or if `axis` is out of bounds.
        IndexError: if a concrete index is out of bounds.
        ConcretizationTypeError: if `obj` is traced, without `assume_unique_indices`.

    Example:
        >>> jnp.delete(jnp.array([1, 2, 3, 4]), jnp.array([0, 2]))
        Array([2, 4], dtype=int32)
    """
    x, dim = _flat_or_dim("delete", arr, axis)
    size = x.type.shape[dim]
    if not isinstance(obj, slice):
        index_type = type_of(obj, "delete")
        if index_type.ndim > 1 or not (is_integer(index_type.dtype) or index_type.dtype == np.bool_):
            raise ValueError(
                f"delete: indices must be an integer, a slice, or a 1-D array of integers or booleans, not {index_type}"
            )
        if assume_unique_indices and is_integer(index_type.dtype):
            return _delete_unique(x, obj, dim=dim, count=index_type.size)
    unknown = (
        "the number of distinct indices is unknown. If none repeats, pass "
        "`delete(arr, obj, assume_unique_indices=True)`"
    )
    indices: Any = obj if isinstance(obj, slice) else concrete_value("delete", obj, unknown)
    is_integers = isinstance(indices, np.ndarray) and indices.dtype != np.bool_ and indices.size
    if is_integers and (indices.min() < -size or indices.max() >= size):
        raise IndexError(f"delete: index {indices} is out of bounds for dim {dim} of {x.type}")
    return _keep(x, dim, np.delete(np.arange(size, dtype=np.int32), indices))


def _keep(x: Array, dim: int, kept: np.ndarray) -> Any:
    """Return the elements at ascending indices. A few slices cost less communication than a gather."""
    breaks = (np.flatnonzero(np.diff(kept) != 1) + 1).tolist()
    if len(breaks) >= _MAX_SLICES:
        return take(x, kept, dim, mode="clip")
    slices = tuple((int(kept[a]), int(kept[b - 1]) + 1) for a, b in pairwise([0, *breaks, len(kept)]) if a < b)
    return _concatenate_slices(x, dim=dim, slices=slices or ((0, 0),))


@compiled_function
def _concatenate_slices(x: Array, *, dim: int, slices: tuple[tuple[int, int], ...]) -> Any:
    parts = [slice_along(x, dim, start, limit) for start, limit in slices]
    return Concatenate(dim)(*parts) if len(parts) > 1 else parts[0]


@compiled_function
def _delete_unique(x: Array, indices: Array, *, dim: int, count: int) -> Any:
    size = x.type.shape[dim]
    index = wrap_negative_index(as_index(indices), size)
    is_kept = full((size,), True, np.bool_).at[index].set(False)
    return take(x, nonzero(is_kept, size=size - count)[0], dim, mode="clip")


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Array:
    """Remove leading and trailing zeros.

    In an array of several dims, a slice along an axis is removed if all of its elements are zero. The shape of the
    result depends on the values, so the array must not be traced.

    Args:
        filt: the array.
        trim: the sides to trim: "f" for the front, "b" for the back, "fb" for both.
        axis: the axis or axes to trim along; all if None.

    Returns:
        The trimmed array.

    Raises:
        ConcretizationTypeError: if `filt` is traced.
        ValueError: if an axis is out of bounds or repeats.

    Example:
        >>> jnp.trim_zeros(jnp.array([0, 0, 1, 0, 2, 0]))
        Array([1, 0, 2], dtype=int32)
    """
    x = as_operand(filt, "trim_zeros")
    axes = range(x.type.ndim) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    dims = canonical_axes("trim_zeros", tuple(axes), x.type)
    unknown = "its zeros, which determine the shape of the result, are unknown"
    nonzero_indices = np.nonzero(concrete_value("trim_zeros", x, unknown))
    index = [slice(None)] * x.type.ndim
    for dim in dims:
        if not nonzero_indices[dim].size:
            index[dim] = slice(0, 0)
            continue
        first = int(nonzero_indices[dim].min()) if "f" in trim.lower() else 0
        last = int(nonzero_indices[dim].max()) + 1 if "b" in trim.lower() else x.type.shape[dim]
        index[dim] = slice(first, last)
    return x[tuple(index)]
