"""Histograms: bincount, digitize, histogram, histogram2d and histogramdd.

Counts are a scatter-add. On a mesh each device counts the elements of its own shard, and an all-reduce adds the counts:
no element is sent to another device.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays import reductions
from shardwise.compiler.arrays.arithmetic import add, divide, multiply, subtract
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, inexact_dtype, promote_dtypes
from shardwise.compiler.dtypes import DType, is_integer
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Reverse, slice_along
from shardwise.compiler.reduction import SUM
from shardwise.errors import ConcretizationTypeError
from shardwise.numpy.ordering import searchsorted
from shardwise.typing import ArrayLike, OutSharding

_DENSITY = {"density": "whether to normalize the histogram to a density whose integral is 1."}
_HISTOGRAM = Family(
    {"range": "the lowest and the highest edge. By default the minimum and the maximum of `a`.", **_DENSITY},
    raises=['NotImplementedError: if `bins` is the name of a rule such as "auto".'],
)
_MULTIDIMENSIONAL = Family(
    {"weights": "one weight per point; the weights in a bin are summed. None counts.", **_DENSITY},
    raises=[
        "TypeError: if an argument is not an array or a number.",
        'NotImplementedError: if `bins` contains the name of a rule such as "auto".',
    ],
)

_INDEX_DTYPE = np.dtype(np.int32)


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Count the occurrences of each non-negative integer in a 1-d array.

    With `weights`, the weights of equal integers are summed instead. Negative integers count as 0. Inside `jit` the
    size of the result must be static, so `length` is required there.

    Args:
        x: the integers or booleans, of rank 1.
        weights: one weight per element of `x`, or None to count.
        minlength: the least size of the result. Ignored if `length` is set.
        length: the size of the result; integers that are not smaller are dropped. By default the larger of `minlength`
            and `max(x) + 1`.
        out_sharding: the sharding of the result, or None to let the partitioner choose it.

    Returns:
        An array of rank 1 whose element i is the count of i, or the sum of its weights.

    Raises:
        TypeError: if `x` does not hold integers or booleans.
        ValueError: if `x` is not of rank 1, or if the shape of `weights` differs.
        ConcretizationTypeError: if `x` is traced and `length` is None.

    Example:
        >>> jnp.bincount(jnp.array([1, 1, 3]))
        Array([0, 2, 0, 1], dtype=int32)
    """
    x_type = type_of(x, "bincount")
    if not (is_integer(x_type.dtype) or x_type.dtype == np.bool_):
        raise TypeError(f"bincount: x must hold integers, not {x_type}")
    if x_type.ndim != 1:
        raise ValueError(f"bincount: x must have rank 1, not {x_type}")
    if weights is not None and type_of(weights, "bincount").shape != x_type.shape:
        raise ValueError(f"bincount: the shape of weights {type_of(weights)} differs from that of x {x_type}")
    if length is None:
        try:
            largest = int(_largest(x)) if x_type.size else -1
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                f"bincount: {x_type} is traced, so its largest element and the shape of the result are unknown. "
                "Pass the size of the result: `bincount(x, length=...)`"
            ) from None
        length = max(operator.index(minlength), largest + 1)
    optional_weights = () if weights is None else (weights,)
    with decided_by(out_sharding):
        counts = _bincount(x, *optional_weights, length=operator.index(length))
    return constrain_sharding(counts, out_sharding)


@compiled_function
def _largest(x: ArrayLike) -> Any:
    return reductions.amax(Convert(_INDEX_DTYPE)(as_operand(x)))


@compiled_function
def _bincount(x: ArrayLike, *weights: ArrayLike, length: int) -> Any:
    index = astype_weak(as_operand(x), _INDEX_DTYPE, False)
    index = Max()(index, full_like(index, 0))
    updates = as_operand(weights[0], "bincount") if weights else full(index.type.shape, 1, default_dtype("int*"))
    dtype = default_dtype("int*") if updates.type.dtype == np.bool_ else updates.type.dtype
    return _scatter_add((length,), Reshape((index.type.size, 1))(index), astype_weak(updates, dtype, False))


def _scatter_add(shape: tuple[int, ...], indices: Array, updates: Array) -> Any:
    """Add `updates` to zeros of `shape` at `indices`, whose last dim is an index vector; drop those out of bounds."""
    dims = tuple(range(len(shape)))
    return Scatter((), dims, (), (), dims, combine=SUM)(full(shape, 0, updates.type.dtype), indices, updates)


def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None) -> Array:
    """Return the index of the bin into which each element falls.

    Bin i is between edges i - 1 and i: index 0 is before the first edge, index `len(bins)` after the last one.

    Args:
        x: the elements.
        bins: the edges of the bins, of rank 1, in ascending or descending order.
        right: whether an element that equals an edge belongs to the bin below the edge instead of the one above it.
        method: the search method, as in `searchsorted`; None is "scan".

    Returns:
        An array of integers of the shape of `x`.

    Raises:
        TypeError: if `x` or `bins` is not an array or a number.
        ValueError: if `bins` is not of rank 1, or if `method` is unknown.

    Example:
        >>> jnp.digitize(jnp.array([0.5, 2.0, 9.0]), jnp.array([1.0, 2.0, 3.0]))
        Array([0, 2, 3], dtype=int32)
    """
    bins_type = type_of(bins, "digitize")
    if bins_type.ndim != 1:
        raise ValueError(f"digitize: bins must be edges of rank 1, not {bins_type}")
    return _digitize(x, bins, right=bool(right), method="scan" if method is None else method)


@compiled_function
def _digitize(x: ArrayLike, bins: ArrayLike, *, right: bool, method: str) -> Any:
    edges, values = as_operand(bins), as_operand(x, "digitize")
    size = edges.type.size
    if not size:
        return full(values.type.shape, 0, default_dtype("int*"))
    side = "left" if right else "right"
    if_ascending = searchsorted(edges, values, side=side, method=method)
    in_reversed = searchsorted(Reverse((0,))(edges), values, side=side, method=method)
    first, last = (Reshape(())(slice_along(edges, 0, start, start + 1)) for start in (0, size - 1))
    is_ascending = broadcast_to_shape(Compare("GE")(last, first), if_ascending.type.shape)
    return where(Expr(is_ascending), Expr(if_ascending), size - Expr(in_reversed)).array


@documented(_HISTOGRAM, returns="The edges, one more than there are bins.")
def histogram_bin_edges(a: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None) -> Array:
    """Return the edges of the bins that `histogram` uses.

    The bins have equal width and cover `range`. If its two ends are equal, they are moved apart by 0.5 each.

    Args:
        a: the elements.
        bins: the number of bins, or their edges (of rank 1), which are returned after dtype promotion.
        weights: not used; accepted for compatibility with numpy.

    Raises:
        TypeError: if `a` is not an array or a number, or if `bins` is neither an integer nor an array.
        ValueError: if there is no bin, if the edges are not of rank 1, or if `a` is empty and `range` is None.

    Example:
        >>> jnp.histogram_bin_edges(jnp.array([1.0, 4.0]), bins=3)
        Array([1., 2., 3., 4.], dtype=float32)
    """
    a_type = type_of(a, "histogram")
    if isinstance(bins, str):
        raise NotImplementedError(
            f"histogram: rules for the number of bins, such as {bins!r}, are not supported; pass the number of bins or "
            "their edges"
        )
    dtype = inexact_dtype(a_type.dtype)
    if type_of(bins, "histogram").ndim:
        if type_of(bins).ndim != 1:
            raise ValueError(f"histogram: bins must be an integer or edges of rank 1, not {type_of(bins)}")
        return _promote_edges(bins, dtype=dtype)
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"histogram: the number of bins must be at least 1, not {count}")
    if range is None:
        if not a_type.size:
            raise ValueError(f"histogram: {a_type} has no elements, so it has no minimum and maximum; pass `range`")
        return _edges_from_data(a, count=count, dtype=dtype)
    low, high = range
    return _edges_from_range(low, high, count=count, dtype=dtype)


@compiled_function
def _promote_edges(bins: ArrayLike, *, dtype: DType) -> Any:
    return astype_weak(
        as_operand(bins), promote_dtypes("histogram", (type_of(bins), full((), 0, dtype).type))[0], False
    )


@compiled_function
def _edges_from_data(a: ArrayLike, *, count: int, dtype: DType) -> Any:
    x = astype_weak(as_operand(a), dtype, False)
    return _edges_from_range(reductions.amin(x), reductions.amax(x), count=count, dtype=dtype)


@compiled_function
def _edges_from_range(low: ArrayLike, high: ArrayLike, *, count: int, dtype: DType) -> Any:
    low, high = (astype_weak(as_operand(end, "histogram"), dtype, False) for end in (low, high))
    equal = Compare("EQ")(low, high)
    low = Select()(equal, subtract(low, 0.5), low)
    high = Select()(equal, add(high, 0.5), high)
    index = Iota((count,), 0, dtype)()
    width = divide(subtract(high, low), count)
    return Concatenate(0)(add(multiply(index, width), low), Reshape((1,))(high))


@documented(_HISTOGRAM, returns="A pair of the counts (or sums of weights, or densities), as floats, and the edges.")
def histogram(
    a: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None, density: bool | None = None
) -> tuple[Array, Array]:
    """Count the elements that fall into each bin.

    A bin includes its lower edge; the last bin includes its upper edge too. Elements outside all bins are dropped.

    Args:
        a: the elements, of any shape.
        bins: the number of bins of equal width, or their edges in ascending order.
        weights: one weight per element of `a`; the weights in a bin are summed. None counts.

    Raises:
        TypeError: if `a`, `bins` or `weights` is not an array or a number.
        ValueError: if the shape of `weights` differs from that of `a`, if there is no bin, if the edges are not of rank
            1, or if `a` is empty and `range` is None.

    Example:
        >>> jnp.histogram(jnp.array([1.0, 2.0, 2.0, 4.0]), bins=3)
        (Array([1., 2., 1.], dtype=float32), Array([1., 2., 3., 4.], dtype=float32))
    """
    a_type = type_of(a, "histogram")
    if weights is not None and type_of(weights, "histogram").shape != a_type.shape:
        raise ValueError(f"histogram: the shape of weights {type_of(weights)} differs from that of a {a_type}")
    edges = histogram_bin_edges(a, bins, range, weights)
    optional_weights = () if weights is None else (weights,)
    return _histogram(a, edges, *optional_weights, density=bool(density)), edges


@compiled_function
def _histogram(a: ArrayLike, edges: Array, *weights: ArrayLike, density: bool) -> Any:
    x = as_operand(a)
    dtype, _ = promote_dtypes("histogram", [x.type, *(type_of(w) for w in weights)])
    dtype = inexact_dtype(dtype)
    updates = astype_weak(as_operand(weights[0]), dtype, False) if weights else full(x.type.shape, 1, dtype)
    counts = _scatter_add((edges.type.size - 1,), Reshape((*x.type.shape, 1))(_bin_indices(x, edges)), updates)
    if not density:
        return counts
    widths = _bin_widths(edges)
    return divide(counts, multiply(reductions.sum(counts), widths))


def _bin_widths(edges: Array) -> Any:
    size = edges.type.size
    return subtract(slice_along(edges, 0, 1, size), slice_along(edges, 0, 0, size - 1))


def _bin_indices(x: Array, edges: Array) -> Any:
    """Return the bin into which each element falls; -1 or the number of bins for elements outside all bins."""
    dtype, _ = promote_dtypes("histogram", (x.type, edges.type))
    x, edges = (astype_weak(z, dtype, False) for z in (x, edges))
    size = edges.type.size
    insertion = searchsorted(edges, x, side="right")
    last_edge = broadcast_to_shape(Reshape(())(slice_along(edges, 0, size - 1, size)), x.type.shape)
    edges_before = where(Expr(x) == Expr(last_edge), 2, Expr(insertion).full_like(1))
    return subtract(insertion, edges_before.array)


@documented(_MULTIDIMENSIONAL)
def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array, Array]:
    """Count the points of the plane that fall into each bin of a grid.

    Args:
        x, y: the coordinates of the points, two arrays of rank 1 and equal size.
        bins: the number of bins or their edges, for both coordinates, or a pair with one entry per coordinate.
        range: a pair of (lowest edge, highest edge), one per coordinate. None, also as an entry, uses the minimum and
            the maximum of the coordinates.

    Returns:
        A tuple of the counts, with one dim per coordinate, the edges along x and the edges along y.

    Raises:
        ValueError: if `x` and `y` are not of rank 1 and equal size, or if `bins`, `range` or `weights` do not match
            them.

    Example:
        >>> counts, _, _ = jnp.histogram2d(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 1.0, 2.0]), bins=2)
        >>> counts
        Array([[1, 0],
               [1, 1]], dtype=int32)
    """
    types = type_of(x, "histogram2d"), type_of(y, "histogram2d")
    if types[0].ndim != 1 or types[0].shape != types[1].shape:
        raise ValueError(f"histogram2d: x and y must have rank 1 and equal sizes, not {types[0]} and {types[1]}")
    if not isinstance(bins, (list, tuple)) and type_of(bins, "histogram2d").ndim == 1:
        bins = [bins, bins]
    counts, (x_edges, y_edges) = histogramdd(_stack_columns(x, y), bins, range, weights, density)
    return counts, x_edges, y_edges


@compiled_function
def _stack_columns(*columns: ArrayLike) -> Any:
    dtype, weak = promote_dtypes("histogram2d", [type_of(column) for column in columns])
    return Concatenate(1)(
        *(Reshape((type_of(column).size, 1))(astype_weak(as_operand(column), dtype, weak)) for column in columns)
    )


@documented(_MULTIDIMENSIONAL)
def histogramdd(
    sample: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None, density: bool | None = None
) -> tuple[Array, list[Array]]:
    """Count the points of a space of any dimension that fall into each bin of a grid.

    Args:
        sample: the points, one per row, with one column per coordinate.
        bins: the number of bins for all coordinates, or a sequence with the number of bins or the edges of each.
        range: a sequence of (lowest edge, highest edge) or None, one per coordinate. By default the minimum and the
            maximum of each column.

    Returns:
        A pair of the counts, with one dim per coordinate, and the list of the edges along each coordinate.

    Raises:
        ValueError: if `sample` is not of rank 2, or if `bins`, `range` or `weights` do not match it.

    Example:
        >>> counts, edges = jnp.histogramdd(jnp.array([[1.0, 2.0], [3.0, 2.0]]), bins=(2, 1))
        >>> counts
        Array([[1],
               [1]], dtype=int32)
    """
    sample_type = type_of(sample, "histogramdd")
    if sample_type.ndim != 2:
        raise ValueError(f"histogramdd: sample must have rank 2, with one point per row, not {sample_type}")
    count = sample_type.shape[1]
    if weights is not None and type_of(weights, "histogramdd").shape != sample_type.shape[:1]:
        raise ValueError(f"histogramdd: weights {type_of(weights)} must hold one weight per row of {sample_type}")
    bins_per_dim = list(bins) if isinstance(bins, (list, tuple)) else [bins] * count
    ranges = [None] * count if range is None else list(range)
    if len(bins_per_dim) != count or len(ranges) != count:
        raise ValueError(
            f"histogramdd: bins and range must have {count} entries, one per column of {sample_type}, not "
            f"{len(bins_per_dim)} and {len(ranges)}"
        )
    edges = [
        histogram_bin_edges(column, column_bins, column_range)
        for column, column_bins, column_range in zip(_unstack_columns(sample), bins_per_dim, ranges, strict=True)
    ]
    optional_weights = () if weights is None else (weights,)
    return _histogramdd(sample, *edges, *optional_weights, count=count, density=bool(density)), edges


@compiled_list_function
def _unstack_columns(sample: ArrayLike) -> list[Any]:
    x = as_operand(sample)
    rows = x.type.shape[0]
    return [Reshape((rows,))(slice_along(x, 1, column, column + 1)) for column in _indices(x.type.shape[1])]


def _indices(count: int) -> Sequence[int]:
    """Return the integers from 0 to `count` - 1."""
    return tuple(np.arange(count).tolist())


@compiled_function
def _histogramdd(sample: ArrayLike, *rest: Array, count: int, density: bool) -> Any:
    all_edges, weights = rest[:count], rest[count:]
    columns = _unstack_columns(sample)
    size = columns[0].type.size if columns else 0
    indices = [Reshape((size, 1))(_bin_indices(x, edges)) for x, edges in zip(columns, all_edges, strict=True)]
    shape = tuple(edges.type.size - 1 for edges in all_edges)
    updates = as_operand(weights[0]) if weights else full((size,), 1, default_dtype("int*"))
    counts = _scatter_add(shape, Concatenate(1)(*indices) if len(indices) > 1 else indices[0], updates)
    if not density:
        return counts
    result = as_inexact(counts, "histogramdd")
    result = divide(result, reductions.sum(result))
    for dim, edges in enumerate(all_edges):
        widths = _bin_widths(edges)
        result = divide(result, Reshape(tuple(widths.type.size if d == dim else 1 for d in _indices(count)))(widths))
    return result
