"""Gathers by index arrays (take, take_along_axis) and functions that return indices (nonzero, where, unravel_index)."""

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np

from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.arithmetic import as_bool, remainder, subtract
from shardwise.compiler.arrays.exact_operands import check_equal_shardings
from shardwise.compiler.arrays.indexing import (
    as_index,
    canonical_axis,
    gather_by_index,
    gather_with_fill,
    index_mode,
    out_of_bounds_fill,
    parse_index,
    wrap_negative_index,
)
from shardwise.compiler.arrays.methods import Array, reshape
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    concrete_value,
    static_integer,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.types import Scalar
from shardwise.compiler.ops.elementwise.arithmetic import Div, Rem
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.index_vectors import clamp_index
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.numpy.families import ARRAYS, NOT_AN_ARRAY, TRACED_WITHOUT_SIZE
from shardwise.numpy.ordering import cumsum
from shardwise.typing import ArrayLike

_Fill: TypeAlias = ArrayLike | tuple[ArrayLike, ...] | None
_NONZERO = ARRAYS.extended(
    {
        "a": Parameter("the array, of rank 1 or more.", NOT_AN_ARRAY),
        "size": Parameter(
            "the number of indices to return, as in `nonzero`. Required under `jit`.", TRACED_WITHOUT_SIZE
        ),
        "fill_value": "the padding, one value for all dims or a tuple with one per dim. By default 0.",
    }
)


@documented(ARRAYS, returns="An array in which the dims of `indices` replace the dim `axis` of `a`.")
def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Take elements along an axis by index.

    Args:
        a: the array to take from.
        indices: the indices, integers of any shape. Negative ones count from the end, except in mode "clip".
        axis: the axis to index. None indexes the flattened array.
        mode: the meaning of an index that is out of bounds: "fill" (the default) returns `fill_value`, "clip" the
            nearest element, where negative indices are clipped to 0, and "wrap" the element at the index modulo the
            size. "promise_in_bounds" and "drop" clip too, but negative indices count from the end.
        unique_indices: a promise that no index repeats.
        indices_are_sorted: a promise that the indices are in ascending order.
        fill_value: the value for indices out of bounds. By default NaN for floats and complex numbers, the least value
            for signed integers, the greatest for unsigned ones, and True for booleans.

    Raises:
        TypeError: if `a` or `indices` is not an array or a number.
        ValueError: if `indices` does not hold integers, or if `axis` or `mode` does not exist.
        NotImplementedError: if `out` is not None, or if `mode` is "raise".

    Example:
        >>> jnp.take(jnp.array([5, 6, 7]), jnp.array([2, 0]))
        Array([7, 5], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("take: arrays are immutable, so `out` must be None; use the result")
    if mode == "raise":
        raise NotImplementedError("take: mode='raise' is not supported; use 'fill', 'clip' or 'wrap'")
    resolved_mode = index_mode("take", mode, "fill", ("wrap",))
    index_type = type_of(indices, "take")
    if not is_integer(index_type.dtype):
        raise ValueError(f"take: indices must be integers, not {index_type}")
    x = as_operand(a, "take")
    if axis is None:
        x, axis = reshape(x, shape=-1), 0
    dim = canonical_axis("take", axis, x.type.ndim)
    if resolved_mode == "wrap":
        indices = remainder(indices, x.type.shape[dim])
    elif resolved_mode == "clip":
        indices = _clip_to_zero(indices)
    indexer, arrays = parse_index((*(slice(None),) * dim, as_operand(indices)), x.type)
    fill = out_of_bounds_fill(fill_value, x.type.dtype) if resolved_mode == "fill" else None
    return gather_by_index(x, *arrays, indexer=indexer, fill=fill, sorted=indices_are_sorted, unique=unique_indices)


@compiled_function
def _clip_to_zero(indices: ArrayLike) -> Any:
    index = as_index(indices)
    return Max()(index, zeros_like(index))


def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: Any = None,
    fill_value: ArrayLike | None = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Array:
    """Take elements along an axis with separate indices for each position of the other dims.

    The other dims of both arrays broadcast. `take_along_axis(x, argsort(x), -1)` is `sort(x)`.

    Args:
        arr: the array to take from.
        indices: the indices, integers, of the rank of `arr`.
        axis: the axis to index. None indexes the flattened array by indices of rank 1.
        mode: the meaning of an index that is out of bounds: "fill" (the default) returns `fill_value`, "clip" the
            nearest element.
        fill_value: the value for indices out of bounds, with the same default as in `take`.
        wrap_negative_indices: whether negative indices count from the end (the default) or are out of bounds (False).

    Returns:
        An array of the broadcast shape, with the size of `indices` along `axis`.

    Raises:
        TypeError: if `indices` does not hold integers, or if the other dims do not broadcast.
        ValueError: if the ranks differ, or if `axis` or `mode` does not exist.
        IndexError: if `arr` is empty along `axis` and the result is not empty.

    Example:
        >>> jnp.take_along_axis(jnp.array([[5, 6], [7, 8]]), jnp.array([[1], [0]]), axis=1)
        Array([[6],
               [7]], dtype=int32)
    """
    index_type, x = type_of(indices, "take_along_axis"), as_operand(arr, "take_along_axis")
    if not is_integer(index_type.dtype):
        raise TypeError(f"take_along_axis: indices must be integers, not {index_type}")
    resolved_mode = index_mode("take_along_axis", mode, "fill")
    if axis is None:
        x, axis = reshape(x, shape=-1), 0
    if index_type.ndim != x.type.ndim:
        raise ValueError(f"take_along_axis: {x.type} and the indices {index_type} must have equal ranks")
    dim = canonical_axis("take_along_axis", axis, x.type.ndim)
    fill = out_of_bounds_fill(fill_value, x.type.dtype) if resolved_mode in ("fill", "drop") else None
    return _take_along_axis(x, indices, dim=dim, fill=fill, wrap_negative=wrap_negative_indices is not False)


@compiled_function
def _take_along_axis(x: Array, indices: ArrayLike, *, dim: int, fill: Scalar | None, wrap_negative: bool) -> Any:
    index = wrap_negative_index(as_index(indices), x.type.shape[dim]) if wrap_negative else as_index(indices)
    batch_dims = tuple(d for d in range(x.type.ndim) if d != dim)
    batch_shape = broadcast_shapes("take_along_axis", *(y.type.without((dim,)).shape for y in (x, index)))
    x, index = (broadcast_to_shape(y, (*batch_shape[:dim], y.type.shape[dim], *batch_shape[dim:])) for y in (x, index))
    if not x.type.shape[dim] and index.type.size:
        raise IndexError(f"take_along_axis: dim {dim} of {x.type} is empty and cannot be indexed by integers")
    op = Gather((), (dim,), batch_dims, batch_dims, (dim,), tuple(min(1, size) for size in x.type.shape))
    return gather_with_fill(op, op.sizes, x, Reshape((*index.type.shape, 1))(index), fill)


@overload
def where(
    condition: ArrayLike,
    x: None = None,
    y: None = None,
    /,
    *,
    size: int | None = None,
    fill_value: _Fill = None,
) -> tuple[Array, ...]: ...


@overload
def where(
    condition: ArrayLike, x: ArrayLike, y: ArrayLike, /, *, size: None = None, fill_value: None = None
) -> Array: ...


def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: _Fill = None,
) -> Any:
    """Select elements from `x` where `condition` is true and from `y` elsewhere.

    The three arrays broadcast. With a condition alone, `where` is `nonzero`.

    Args:
        condition: the mask; elements other than 0 are true.
        x, y: the values to select from. Pass both or neither.
        size: the number of indices to return, as in `nonzero`. Only with a condition alone.
        fill_value: the padding of the indices, as in `nonzero`. Only with a condition alone.

    Returns:
        The selected elements in the promoted dtype of `x` and `y`, or the tuple that `nonzero` returns.

    Raises:
        TypeError: if the shapes do not broadcast, or if an argument is not an array or a number.
        ValueError: if only one of `x` and `y` is passed, or if `size` or `fill_value` is passed with them.
        ConcretizationTypeError: if only a traced condition is passed, without `size`.

    Example:
        >>> jnp.where(jnp.array([True, False]), 1, 2)
        Array([1, 2], dtype=int32, weak_type=True)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError("where: pass both x and y, or neither")
    if size is not None or fill_value is not None:
        raise ValueError("where: size and fill_value are only allowed without x and y")
    check_equal_shardings("where", condition, x, y)
    return methods.where(condition, x, y)


@documented(_NONZERO, raises=["ValueError: if `a` has rank 0, or if the number of fill values differs from the rank."])
def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: _Fill = None) -> tuple[Array, ...]:
    """Return the indices of the elements that are not zero.

    Inside `jit` the shape of the result must be static, so `size` is required there. With `size`, surplus indices are
    dropped and missing ones are padded.

    Args:
        size: the number of indices to return.

    Returns:
        A tuple with one array of rank 1 per dim of `a`, with the indices along that dim in row-major order.

    Example:
        >>> jnp.nonzero(jnp.array([0, 3, 0, 5]))
        (Array([1, 3], dtype=int32),)
    """
    return tuple(_nonzero_indices("nonzero", a, size, fill_value))


def static_size(name: str, size: SupportsIndex) -> int:
    """Check the `size` argument of a function whose result has a data-dependent size."""
    count = static_integer(name, "size", size)
    if count < 0:
        raise TypeError(f"{name}: size must not be negative: {count}")
    return count


def _nonzero_indices(name: str, a: ArrayLike, size: int | None, fill_value: _Fill) -> Any:
    """Return the indices of the elements that are not zero, with one row per dim. `name` is the caller, for errors."""
    a_type = type_of(a, name)
    if not a_type.ndim:
        raise ValueError(f"{name}: a 0-d array has no indices; add a dim first, `x[None]`")
    if size is None:
        unknown = (
            "the number of nonzero elements and the shape of the result are unknown. "
            f"Pass an upper bound: `{name}(a, size=...)`"
        )
        indices = np.nonzero(concrete_value(name, a, unknown))
        return dispatch.executor.place(np.asarray(indices, default_dtype("int*")), beside=a)
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * a_type.ndim
    if len(fills) != a_type.ndim:
        raise ValueError(f"{name}: {len(fills)} fill values for {a_type}, which has rank {a_type.ndim}")
    padding_values = [0 if fill is None else fill for fill in fills]
    return _first_nonzero(a, *padding_values, size=static_size(name, size))


@compiled_function
def _first_nonzero(a: ArrayLike, *fills: ArrayLike, size: int) -> Any:
    """Return the indices of the first `size` nonzero elements, padded with `fills` (one per dim)."""
    x = as_bool(a, "nonzero")
    shape, dtype = x.type.shape, default_dtype("int*")
    padding = [broadcast_to_shape(astype_weak(as_operand(fill), dtype, False), (size,)) for fill in fills]
    if not x.type.size or not size:
        return _stack(padding)
    mask = Reshape((x.type.size,))(x)
    count = cumsum(mask, dtype=dtype)
    # Scatter the flat index of the k-th nonzero element to position k. Zeros and surplus elements go to positions that
    # are out of bounds, which the scatter drops.
    rank = subtract(count, full(count.type.shape, 1, dtype))
    position = Select()(mask, rank, full(rank.type.shape, size, dtype))
    scatter = Scatter((), (0,), (), (), (0,), combine=None, unique=True)
    flat_index = scatter(full((size,), 0, dtype), Reshape((x.type.size, 1))(position), Iota((x.type.size,), 0, dtype)())
    total = Reshape(())(slice_along(count, 0, x.type.size - 1, x.type.size))
    is_valid = Compare("LT")(Iota((size,), 0, dtype)(), Broadcast((size,), ())(total))
    return _stack([Select()(is_valid, *pair) for pair in zip(_unravel(flat_index, shape), padding, strict=True)])


def _stack(arrays: Sequence[Any]) -> Any:
    """Stack arrays of equal shapes along a new first dim."""
    rows = [Reshape((1, *x.type.shape))(x) for x in arrays]
    return Concatenate(0)(*rows) if len(rows) > 1 else rows[0]


def _unravel(index: Array, shape: Sequence[int]) -> list[Any]:
    """Convert flat row-major indices into an array of `shape` to one index array per dim."""
    index_type = index.type
    indices = []
    for dim, size in enumerate(shape):
        stride = full(index_type.shape, math.prod(shape[dim + 1 :]), index_type.dtype)
        indices.append(Rem()(Div()(index, stride), full(index_type.shape, size, index_type.dtype)))
    return indices


@documented(_NONZERO, returns="An array of integers of rank 1.")
def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None) -> Array:
    """Return the flat row-major indices of the elements that are not zero.

    Args:
        a: the array, which is flattened.
        fill_value: the padding if there are fewer; 0 by default.

    Example:
        >>> jnp.flatnonzero(jnp.array([[0, 3], [4, 0]]))
        Array([1, 2], dtype=int32)
    """
    return _nonzero_indices("flatnonzero", reshape(a, shape=-1), size, fill_value)[0]


@documented(_NONZERO, returns="An array of integers of rank 2, with one column per dim of `a`.")
def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: _Fill = None) -> Array:
    """Return the indices of the elements that are not zero, with one row per element.

    Args:
        size: the number of elements to return indices for, as in `nonzero`. Required under `jit`.

    Raises:
        ValueError: if `a` has rank 0, or if the number of fill values differs from the rank.

    Example:
        >>> jnp.argwhere(jnp.array([[0, 3], [4, 0]]))
        Array([[0, 1],
               [1, 0]], dtype=int32)
    """
    return _nonzero_indices("argwhere", a, size, fill_value).T


def unravel_index(indices: ArrayLike, shape: int | Sequence[int]) -> tuple[Array, ...]:
    """Convert flat row-major indices to one index array per dim.

    Negative indices count from the end. Indices out of bounds are clipped.

    Args:
        indices: the flat indices, integers of any shape.
        shape: the shape of the array to index.

    Returns:
        A tuple with one array per dim of `shape`, each of the shape of `indices`.

    Raises:
        TypeError: if `indices` does not hold integers, or if `shape` is not made of integers.

    Example:
        >>> jnp.unravel_index(jnp.array([1, 5]), (2, 3))
        (Array([0, 1], dtype=int32), Array([1, 2], dtype=int32))
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    return tuple(_unravel_index(indices, shape=sizes))


@compiled_function
def _unravel_index(indices: ArrayLike, *, shape: tuple[int, ...]) -> Any:
    total = math.prod(shape)
    return _stack(_unravel(clamp_index(wrap_negative_index(as_index(indices), total), total - 1), shape))


def ix_(*args: ArrayLike) -> tuple[Array, ...]:
    """Reshape 1-d index arrays so that they broadcast to the grid of all their combinations.

    `x[ix_(i, j)]` has the element `x[i[m], j[n]]` at position (m, n).

    Args:
        *args: the index arrays, of rank 1. A mask of booleans stands for the indices of its true elements.

    Returns:
        A tuple with one array per argument; array k has the indices along dim k and size 1 along the others.

    Raises:
        TypeError: if an argument is not an array or a number.
        ValueError: if an argument is not of rank 1.
        ConcretizationTypeError: if a mask is traced.

    Example:
        >>> jnp.arange(9).reshape(3, 3)[jnp.ix_(jnp.array([0, 2]), jnp.array([1, 2]))]
        Array([[1, 2],
               [7, 8]], dtype=int32)
    """
    arrays = []
    for arg in args:
        arg_type = type_of(arg, "ix_")
        if arg_type.ndim != 1:
            raise ValueError(f"ix_: index arrays must have rank 1, not {arg_type}")
        arrays.append(_nonzero_indices("nonzero", arg, None, None)[0] if arg_type.dtype == np.bool_ else arg)
    ndim = len(arrays)
    return tuple(reshape(array, shape=(*(1,) * dim, -1, *(1,) * (ndim - dim - 1))) for dim, array in enumerate(arrays))
