"""Elements at places that may be of the program, and the places of elements."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import Scalar, is_integer
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.elementwise import Compare, Div, Rem, Select
from shardwise.compiler.ops.extremum import Max
from shardwise.compiler.ops.gather import Gather
from shardwise.compiler.ops.indexed import clamped
from shardwise.compiler.ops.indexing import as_index, dim_of, fill_of, filled, from_start, indexer, mode_of, take_at
from shardwise.compiler.ops.methods import reshape
from shardwise.compiler.ops.numeric import remainder, subtract, truth
from shardwise.compiler.ops.operands import as_operand, astype_weak, broadcast_shapes, composed, known, stretch, type_of
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.scatter import Scatter
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full, zeros_like
from shardwise.compiler.ops.slicing import Concatenate, along
from shardwise.numpy.ordering import cumsum


def take(
    a: Any,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Any:
    """The elements at `indices` along `axis`; without one, of all elements in a row.

    `mode`: what an index outside means: `fill_value` ("fill", unless told), the nearest element ("clip", where negative
    indices lie outside too), or one that is found by counting around ("wrap").

    >>> jnp.take(jnp.array([5, 6, 7]), jnp.array([2, 0]))
    Array([7, 5], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("take: arrays are immutable, so there is no `out`; use the result")
    if mode == "raise":
        raise NotImplementedError("take: a computation cannot raise; the modes are 'fill', 'clip' and 'wrap'")
    how = mode_of("take", mode, "fill", ("wrap",))
    kind = type_of(indices, "take")
    if not is_integer(kind.dtype):
        raise ValueError(f"take: indices must be integers, not {kind}")
    x = as_operand(a, "take")
    if axis is None:
        x, axis = reshape(x, shape=-1), 0
    dim = dim_of("take", axis, x.type.ndim)
    if how == "wrap":
        indices = remainder(indices, x.type.shape[dim])
    elif how == "clip":
        indices = _at_least_zero(indices)
    by, arrays = indexer((*(slice(None),) * dim, as_operand(indices)), x.type)
    fill = fill_of(fill_value, x.type.dtype) if how == "fill" else None
    return take_at(x, *arrays, by=by, fill=fill, sorted=indices_are_sorted, unique=unique_indices)


@composed
def _at_least_zero(indices: Any) -> Any:
    index = as_index(indices)
    return Max()(index, zeros_like(index))


def take_along_axis(
    arr: Any,
    indices: Any,
    axis: int | None = -1,
    mode: Any = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Any:
    """Along `axis`, for each place of the other dims the elements at indices of its own.

    The other dims of both arrays broadcast. An index outside means `fill_value`, or the nearest element (mode "clip").
    Negative ones count from the end; where `wrap_negative_indices` is False, they lie outside.

    >>> jnp.take_along_axis(jnp.array([[5, 6], [7, 8]]), jnp.array([[1], [0]]), axis=1)
    Array([[6],
           [7]], dtype=int32)
    """
    kind, x = type_of(indices, "take_along_axis"), as_operand(arr, "take_along_axis")
    if not is_integer(kind.dtype):
        raise TypeError(f"take_along_axis: indices must be integers, not {kind}")
    how = mode_of("take_along_axis", mode, "fill")
    if axis is None:
        x, axis = reshape(x, shape=-1), 0
    if kind.ndim != x.type.ndim:
        raise ValueError(f"take_along_axis: {x.type} and the indices {kind} must have one rank")
    dim = dim_of("take_along_axis", axis, x.type.ndim)
    fill = fill_of(fill_value, x.type.dtype) if how in ("fill", "drop") else None
    return _along_axis(x, indices, dim=dim, fill=fill, from_end=wrap_negative_indices is not False)


@composed
def _along_axis(x: Any, indices: Any, *, dim: int, fill: Scalar | None, from_end: bool) -> Any:
    index = from_start(as_index(indices), x.type.shape[dim]) if from_end else as_index(indices)
    rest = tuple(d for d in range(x.type.ndim) if d != dim)
    others = broadcast_shapes("take_along_axis", *(y.type.without((dim,)).shape for y in (x, index)))
    x, index = (stretch(y, (*others[:dim], y.type.shape[dim], *others[dim:])) for y in (x, index))
    op = Gather((), (dim,), rest, rest, (dim,), (1,) * x.type.ndim)
    return filled(op, op.sizes, x, Reshape((*index.type.shape, 1))(index), fill)


def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where `condition` holds `x`, else `y`; all three broadcast. Of a condition alone, `nonzero`.

    >>> jnp.where(jnp.array([True, False]), 1, 2)
    Array([1, 2], dtype=int32)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError("where: needs both x and y, or neither")
    if size is not None or fill_value is not None:
        raise ValueError("where: size and fill_value are for a condition alone")
    return methods.where(condition, x, y)


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """Where elements differ from zero: for each dim, their indices along it.

    How many there are must be known: of an array of the program, give `size`. Those that are too many are left out;
    where there are too few, `fill_value` follows (one for all dims, or one for each), else zeros.

    >>> jnp.nonzero(jnp.array([0, 3, 0, 5]))
    (Array([1, 3], dtype=int32),)
    """
    return tuple(_places("nonzero", a, size, fill_value))


def _places(name: str, a: Any, size: int | None, fill_value: Any) -> Any:
    """The indices of elements that differ from zero: a row for each dim."""
    kind = type_of(a, name)
    if not kind.ndim:
        raise ValueError(f"{name}: a 0-d array has no places; give it a dim first, `x[None]`")
    if size is None:
        unknown = (
            "nobody knows how many elements differ from zero, and the shape of the result. Say how many there are at "
            f"most: `{name}(a, size=...)`"
        )
        found = np.nonzero(known(name, a, unknown))
        return as_operand(np.asarray(found, default_dtype("int*")))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * kind.ndim
    if len(fills) != kind.ndim:
        raise ValueError(f"{name}: {len(fills)} fill values for {kind}, which has rank {kind.ndim}")
    given = [0 if fill is None else fill for fill in fills]
    return _first_places(a, *given, size=operator.index(size))


@composed
def _first_places(a: Any, *fills: Any, size: int) -> Any:
    x = truth(a, "nonzero")
    shape, dtype = x.type.shape, default_dtype("int*")
    rows = [stretch(astype_weak(as_operand(fill), dtype, False), (size,)) for fill in fills]
    if not x.type.size or not size:
        return _stacked(rows)
    flat = Reshape((x.type.size,))(x)
    count = cumsum(flat, dtype=dtype)
    # Each goes to the place that its number among them says; the others, and those that are too many, lie outside.
    number = subtract(count, full(count.type.shape, 1, dtype))
    place = Select()(flat, number, full(number.type.shape, size, dtype))
    put = Scatter((), (0,), (), (), (0,), how="set", unique=True)
    at = put(full((size,), 0, dtype), Reshape((x.type.size, 1))(place), Iota((x.type.size,), 0, dtype)())
    total = Reshape(())(along(count, 0, x.type.size - 1, x.type.size))
    is_there = Compare("LT")(Iota((size,), 0, dtype)(), Broadcast((size,), ())(total))
    return _stacked([Select()(is_there, *pair) for pair in zip(_unravelled(at, shape), rows, strict=True)])


def _stacked(arrays: Sequence[Any]) -> Any:
    """Arrays of one shape along a new first dim."""
    rows = [Reshape((1, *x.type.shape))(x) for x in arrays]
    return Concatenate(0)(*rows) if len(rows) > 1 else rows[0]


def _unravelled(index: Any, shape: Sequence[int]) -> list[Any]:
    """Places in an array of this shape, counted in row-major order, as an index along each dim."""
    kind = index.type
    found = []
    for dim, size in enumerate(shape):
        below = full(kind.shape, math.prod(shape[dim + 1 :]), kind.dtype)
        found.append(Rem()(Div()(index, below), full(kind.shape, size, kind.dtype)))
    return found


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where elements of the flattened array differ from zero; see `nonzero`.

    >>> jnp.flatnonzero(jnp.array([[0, 3], [4, 0]]))
    Array([1, 2], dtype=int32)
    """
    return _places("flatnonzero", reshape(a, shape=-1), size, fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where elements differ from zero: a row of indices for each; see `nonzero`.

    >>> jnp.argwhere(jnp.array([[0, 3], [4, 0]]))
    Array([[0, 1],
           [1, 0]], dtype=int32)
    """
    return _places("argwhere", a, size, fill_value).T


def unravel_index(indices: Any, shape: int | Sequence[int]) -> tuple[Any, ...]:
    """Places in an array of this shape, counted in row-major order, as an index along each dim.

    Negative ones count from the end; one outside means the nearest element.

    >>> jnp.unravel_index(jnp.array([1, 5]), (2, 3))
    (Array([0, 1], dtype=int32), Array([1, 2], dtype=int32))
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    return tuple(_unravel(indices, shape=sizes))


@composed
def _unravel(indices: Any, *, shape: tuple[int, ...]) -> Any:
    total = math.prod(shape)
    return _stacked(_unravelled(clamped(from_start(as_index(indices), total), total - 1), shape))


def ix_(*args: Any) -> tuple[Any, ...]:
    """Rows of indices as arrays that index together: `x[ix_(i, j)]` takes all pairs. Booleans say which there are.

    >>> jnp.arange(9).reshape(3, 3)[jnp.ix_(jnp.array([0, 2]), jnp.array([1, 2]))]
    Array([[1, 2],
           [7, 8]], dtype=int32)
    """
    rows = []
    for arg in args:
        kind = type_of(arg, "ix_")
        if kind.ndim != 1:
            raise ValueError(f"ix_: needs rows of indices, not {kind}")
        rows.append(_places("nonzero", arg, None, None)[0] if kind.dtype == np.bool_ else arg)
    return tuple(reshape(row, shape=(*(1,) * dim, -1, *(1,) * (len(rows) - dim - 1))) for dim, row in enumerate(rows))
