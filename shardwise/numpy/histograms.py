"""How many elements fall where. On a mesh each device counts its own, and the counts are added: no element moves."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import DType, is_inexact, is_integer
from shardwise.compiler.ops import along_axes
from shardwise.compiler.ops.elementwise import Compare, Convert, Select, Sub, like
from shardwise.compiler.ops.extremum import Max
from shardwise.compiler.ops.numeric import add, divide, multiply, subtract
from shardwise.compiler.ops.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    composed,
    composed_list,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.scatter import Scatter
from shardwise.compiler.ops.shape import Iota, Reshape, full
from shardwise.compiler.ops.slicing import Concatenate, Reverse, along
from shardwise.errors import ConcretizationTypeError
from shardwise.lax.shape import laid_out
from shardwise.numpy.ordering import searchsorted

_INT = np.dtype(np.int32)


def bincount(
    x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None, out_sharding: Any = None
) -> Any:
    """How often each number from 0 on occurs in `x`, a row of integers; or the sums of its `weights`.

    There is a count for each number up to the largest, and `minlength` at least; of an array of the program, nobody
    knows the largest: there give `length`. Larger numbers are then left out. Negative ones count as 0.

    >>> jnp.bincount(jnp.array([1, 1, 3]))
    Array([0, 2, 0, 1], dtype=int32)
    """
    kind = type_of(x, "bincount")
    if not (is_integer(kind.dtype) or kind.dtype == np.bool_):
        raise TypeError(f"bincount: needs integers, not {kind}")
    if kind.ndim != 1:
        raise ValueError(f"bincount: needs one row, not {kind}")
    if weights is not None and type_of(weights, "bincount").shape != kind.shape:
        raise ValueError(f"bincount: weights {type_of(weights)} have not the shape of {kind}")
    if length is None:
        try:
            largest = int(_largest(x)) if kind.size else -1
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                f"bincount: {kind} is traced, so nobody knows its largest element, and the shape of the result. "
                "Say how many counts there are: `bincount(x, length=...)`"
            ) from None
        length = max(operator.index(minlength), largest + 1)
    given = () if weights is None else (weights,)
    return laid_out(_counted(x, *given, length=operator.index(length)), out_sharding)


@composed
def _largest(x: Any) -> Any:
    return along_axes.amax(Convert(_INT)(as_operand(x)))


@composed
def _counted(x: Any, *weights: Any, length: int) -> Any:
    index = astype_weak(as_operand(x), _INT, False)
    index = Max()(index, like(index, 0))
    updates = as_operand(weights[0], "bincount") if weights else full(index.type.shape, 1, default_dtype("int*"))
    dtype = default_dtype("int*") if updates.type.dtype == np.bool_ else updates.type.dtype
    return _added((length,), Reshape((index.type.size, 1))(index), astype_weak(updates, dtype, False))


def _added(shape: tuple[int, ...], places: Any, updates: Any) -> Any:
    """The sums of updates at places, each a row of indices; those outside are left out."""
    dims = tuple(range(len(shape)))
    return Scatter((), dims, (), (), dims, how="add")(full(shape, 0, updates.type.dtype), places, updates)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """In which of `bins`, a row of edges that ascends or descends, each element falls: before the first is 0.

    An edge belongs to the bin above it, or with `right` to the one below it. `method` is that of `searchsorted`.

    >>> jnp.digitize(jnp.array([0.5, 2.0, 9.0]), jnp.array([1.0, 2.0, 3.0]))
    Array([0, 2, 3], dtype=int32)
    """
    kind = type_of(bins, "digitize")
    if kind.ndim != 1:
        raise ValueError(f"digitize: bins must be one row of edges, not {kind}")
    return _digits(x, bins, right=bool(right), method="scan" if method is None else method)


@composed
def _digits(x: Any, bins: Any, *, right: bool, method: str) -> Any:
    edges, values = as_operand(bins), as_operand(x, "digitize")
    size = edges.type.size
    if not size:
        return full(values.type.shape, 0, default_dtype("int*"))
    side = "left" if right else "right"
    up = searchsorted(edges, values, side=side, method=method)
    down = searchsorted(Reverse((0,))(edges), values, side=side, method=method)
    first, last = (Reshape(())(along(edges, 0, place, place + 1)) for place in (0, size - 1))
    ascends = stretch(Compare("GE")(last, first), up.type.shape)
    return Select()(ascends, up, Sub()(like(down, size), down))


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of `bins` bins of one width, from the smallest to the largest element, or over `range`.

    Where these are equal, half a unit more on both sides. An array of edges is given as it is.

    >>> jnp.histogram_bin_edges(jnp.array([1.0, 4.0]), bins=3)
    Array([1., 2., 3., 4.], dtype=float32)
    """
    kind = type_of(a, "histogram")
    if isinstance(bins, str):
        raise NotImplementedError(f"histogram: give the number of bins or their edges, not a rule as {bins!r}")
    dtype = kind.dtype if is_inexact(kind.dtype) else default_dtype("float*")
    if type_of(bins, "histogram").ndim:
        if type_of(bins).ndim != 1:
            raise ValueError(f"histogram: bins must be a number or one row of edges, not {type_of(bins)}")
        return _edges_given(bins, dtype=dtype)
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"histogram: there is at least one bin, not {count}")
    if range is None:
        if not kind.size:
            raise ValueError(f"histogram: {kind} has no elements, and so no smallest: give `range`")
        return _edges(a, count=count, dtype=dtype)
    low, high = range
    return _edges_over(low, high, count=count, dtype=dtype)


@composed
def _edges_given(bins: Any, *, dtype: DType) -> Any:
    return astype_weak(as_operand(bins), meet("histogram", (type_of(bins), full((), 0, dtype).type))[0], False)


@composed
def _edges(a: Any, *, count: int, dtype: DType) -> Any:
    x = astype_weak(as_operand(a), dtype, False)
    return _edges_over(along_axes.amin(x), along_axes.amax(x), count=count, dtype=dtype)


@composed
def _edges_over(low: Any, high: Any, *, count: int, dtype: DType) -> Any:
    low, high = (astype_weak(as_operand(end, "histogram"), dtype, False) for end in (low, high))
    equal = Compare("EQ")(low, high)
    low = Select()(equal, subtract(low, 0.5), low)
    high = Select()(equal, add(high, 0.5), high)
    places = Iota((count,), 0, dtype)()
    step = divide(subtract(high, low), count)
    return Concatenate(0)(add(multiply(places, step), low), Reshape((1,))(high))


def histogram(a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None) -> Any:
    """How many elements fall into each bin, or the sums of their `weights`; and the edges of bins.

    Each bin has its lower edge, and the last also its upper one. `density`: so that the area of all bins is 1.

    >>> jnp.histogram(jnp.array([1.0, 2.0, 2.0, 4.0]), bins=3)
    (Array([1., 2., 1.], dtype=float32), Array([1., 2., 3., 4.], dtype=float32))
    """
    kind = type_of(a, "histogram")
    if weights is not None and type_of(weights, "histogram").shape != kind.shape:
        raise ValueError(f"histogram: weights {type_of(weights)} have not the shape of {kind}")
    edges = histogram_bin_edges(a, bins, range, weights)
    given = () if weights is None else (weights,)
    return _histogram(a, edges, *given, density=bool(density)), edges


@composed
def _histogram(a: Any, edges: Any, *weights: Any, density: bool) -> Any:
    x = as_operand(a)
    dtype, _ = meet("histogram", [x.type, *(type_of(w) for w in weights)])
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    each = astype_weak(as_operand(weights[0]), dtype, False) if weights else full(x.type.shape, 1, dtype)
    counts = _added((edges.type.size - 1,), Reshape((*x.type.shape, 1))(_bins_of(x, edges)), each)
    if not density:
        return counts
    widths = _widths(edges)
    return divide(counts, multiply(along_axes.sum(counts), widths))


def _widths(edges: Any) -> Any:
    size = edges.type.size
    return subtract(along(edges, 0, 1, size), along(edges, 0, 0, size - 1))


def _bins_of(x: Any, edges: Any) -> Any:
    """The bin into which each element falls; -1 or one past the last where it falls into none."""
    dtype, _ = meet("histogram", (x.type, edges.type))
    x, row = (astype_weak(z, dtype, False) for z in (x, edges))
    size = row.type.size
    place = searchsorted(row, x, side="right")
    last = stretch(Reshape(())(along(row, 0, size - 1, size)), x.type.shape)
    return subtract(place, Select()(Compare("EQ")(x, last), like(place, 2), like(place, 1)))


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> Any:
    """How many of the points with coordinates `x` and `y` fall into each bin; and the edges of bins along both.

    `bins` is a number or a row of edges, for both or one for each of them.

    >>> counts, _, _ = jnp.histogram2d(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 1.0, 2.0]), bins=2)
    >>> counts
    Array([[1, 0],
           [1, 1]], dtype=int32)
    """
    sides = type_of(x, "histogram2d"), type_of(y, "histogram2d")
    if sides[0].ndim != 1 or sides[0].shape != sides[1].shape:
        raise ValueError(f"histogram2d: x and y must be two rows of one size, not {sides[0]} and {sides[1]}")
    if not isinstance(bins, (list, tuple)) and type_of(bins, "histogram2d").ndim == 1:
        bins = [bins, bins]
    counts, (left, right) = histogramdd(_columns(x, y), bins, range, weights, density)
    return counts, left, right


@composed
def _columns(*rows: Any) -> Any:
    dtype, weak = meet("histogram2d", [type_of(row) for row in rows])
    return Concatenate(1)(*(Reshape((type_of(row).size, 1))(astype_weak(as_operand(row), dtype, weak)) for row in rows))


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, list[Any]]:
    """How many points, the rows of `sample`, fall into each bin; and the edges of bins along each dim.

    `bins` is a number for all dims, or for each dim a number or a row of edges; `range` has two ends for each dim.

    >>> counts, edges = jnp.histogramdd(jnp.array([[1.0, 2.0], [3.0, 2.0]]), bins=(2, 1))
    >>> counts
    Array([[1],
           [1]], dtype=int32)
    """
    kind = type_of(sample, "histogramdd")
    if kind.ndim != 2:
        raise ValueError(f"histogramdd: needs a row for each point, not {kind}")
    count = kind.shape[1]
    if weights is not None and type_of(weights, "histogramdd").shape != kind.shape[:1]:
        raise ValueError(f"histogramdd: weights {type_of(weights)} are not one for each row of {kind}")
    parts = list(bins) if isinstance(bins, (list, tuple)) else [bins] * count
    ends = [None] * count if range is None else list(range)
    if len(parts) != count or len(ends) != count:
        raise ValueError(f"histogramdd: needs bins and ranges for {count} dims, not {len(parts)} and {len(ends)}")
    edges = [
        histogram_bin_edges(column, part, end) for column, part, end in zip(_rows_of(sample), parts, ends, strict=True)
    ]
    given = () if weights is None else (weights,)
    return _histogram_of_rows(sample, *edges, *given, count=count, density=bool(density)), edges


@composed_list
def _rows_of(sample: Any) -> list[Any]:
    x = as_operand(sample)
    rows = x.type.shape[0]
    return [Reshape((rows,))(along(x, 1, place, place + 1)) for place in _upto(x.type.shape[1])]


def _upto(count: int) -> Sequence[int]:
    return tuple(np.arange(count).tolist())


@composed
def _histogram_of_rows(sample: Any, *rest: Any, count: int, density: bool) -> Any:
    edges, weights = rest[:count], rest[count:]
    columns = _rows_of(sample)
    size = columns[0].type.size if columns else 0
    places = [Reshape((size, 1))(_bins_of(x, row)) for x, row in zip(columns, edges, strict=True)]
    shape = tuple(row.type.size - 1 for row in edges)
    each = as_operand(weights[0]) if weights else full((size,), 1, default_dtype("int*"))
    counts = _added(shape, Concatenate(1)(*places) if len(places) > 1 else places[0], each)
    if not density:
        return counts
    found = as_inexact(counts, "histogramdd")
    found = divide(found, along_axes.sum(found))
    for dim, row in enumerate(edges):
        widths = _widths(row)
        found = divide(found, Reshape(tuple(widths.type.size if d == dim else 1 for d in _upto(count)))(widths))
    return found
