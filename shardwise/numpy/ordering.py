"""Cumulative sums and products, sorting, searchsorted and quantiles."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.api.control import fori_loop
from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays import methods, sorting
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    compiled_function,
    reject_out,
    static_axes,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.arrays.reductions import reduced_dims, sum_dtype
from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import Not
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.min_max import Clamp, Max
from shardwise.compiler.ops.elementwise.rounding import Ceil, Floor, Round
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceOr
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.reduction import PROD, SUM, Reduction
from shardwise.lax.gradient import stop_gradient
from shardwise.numpy.elementwise import replace_nan
from shardwise.numpy.families import ARRAYS, NOT_AN_ARRAY, NOT_AN_INTEGER, OUT_OF_BOUNDS, REDUCTION
from shardwise.typing import ArrayLike, Arrays, Axes, DTypeLike, OutSharding

_CUMULATIVE = ARRAYS.extended(
    {
        "axis": Parameter("the axis to accumulate along. None accumulates over the flattened array.", OUT_OF_BOUNDS),
        "dtype": "the dtype of the result. By default that of `a`; booleans become integers.",
    }
)
_CUMULATIVE_WITH_INITIAL = ARRAYS.extended(
    {
        "x": Parameter("the array, of rank 1 or more.", NOT_AN_ARRAY),
        "axis": "the axis to accumulate along. It may be omitted only if `x` has rank 1.",
    },
    raises=["ValueError: if `axis` is out of bounds, or if it is omitted and `x` is not of rank 1."],
)
_NOT_NONE = "TypeError: if {} is not None."
_SORT = ARRAYS.extended(
    {
        "axis": Parameter("the axis to sort along. None sorts the flattened array.", OUT_OF_BOUNDS),
        "kind, order": Parameter(
            "must be None, as there is only one algorithm and there are no structured dtypes.", _NOT_NONE
        ),
        "stable": "not used, as the sort is always stable.",
        "descending": "whether to sort in descending order.",
    }
)
_PARTITION = ARRAYS.extended(
    {
        "kth": Parameter(
            "the index of the element in sorted order; a negative one counts from the end.", NOT_AN_INTEGER
        ),
        "axis": "the axis to partition along.",
    },
    raises=["ValueError: if `kth` or `axis` is out of bounds."],
)
QUANTILE = REDUCTION.extended(
    {
        "a": Parameter("the array of real numbers.", NOT_AN_ARRAY),
        "q": Parameter("the probabilities, between 0 and 1.", NOT_AN_ARRAY),
        "overwrite_input": "not used; accepted for compatibility with numpy.",
        "method": "the interpolation between two elements, as in `quantile`.",
        "weights": Parameter(
            'the weights of the elements, as in `quantile`. Only with method "inverted_cdf".', NOT_AN_ARRAY
        ),
    },
    raises=[
        "ValueError: if there is no element, if the numbers are complex, if `method` is unknown, or if the shape of\n"
        "`weights` does not match.",
        "NotImplementedError: if weights are passed with another method.",
    ],
)
MEDIAN = Family(QUANTILE.args, raises=["ValueError: if there is no element, or if the numbers are complex."])


@documented(_CUMULATIVE, returns="The cumulative sums, of the shape of `a`, or of rank 1 if `axis` is None.")
def cumsum(a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Compute the cumulative sum of the elements along an axis.

    Example:
        >>> jnp.cumsum(jnp.array([1, 2, 3]))
        Array([1, 3, 6], dtype=int32)
    """
    reject_out("cumsum", out)
    return sorting.cumulative_along(a, reduction=SUM, axis=axis, dtype=requested_dtype("cumsum", dtype))


@documented(_CUMULATIVE, returns="The cumulative products, of the shape of `a`, or of rank 1 if `axis` is None.")
def cumprod(a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Compute the cumulative product of the elements along an axis.

    Example:
        >>> jnp.cumprod(jnp.array([1, 2, 3]))
        Array([1, 2, 6], dtype=int32)
    """
    reject_out("cumprod", out)
    return sorting.cumulative_along(a, reduction=PROD, axis=axis, dtype=requested_dtype("cumprod", dtype))


@documented(_CUMULATIVE, returns="The cumulative sums, of the shape of `a`, or of rank 1 if `axis` is None.")
def nancumsum(a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Compute the cumulative sum of the elements along an axis, with NaN counted as 0.

    Example:
        >>> jnp.nancumsum(jnp.array([1.0, jnp.nan, 3.0]))
        Array([1., 1., 4.], dtype=float32)
    """
    reject_out("nancumsum", out)
    return cumsum(replace_nan(a, value=0), axis, dtype)


@documented(_CUMULATIVE, returns="The cumulative products, of the shape of `a`, or of rank 1 if `axis` is None.")
def nancumprod(a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Compute the cumulative product of the elements along an axis, with NaN counted as 1.

    Example:
        >>> jnp.nancumprod(jnp.array([2.0, jnp.nan, 3.0]))
        Array([2., 2., 6.], dtype=float32)
    """
    reject_out("nancumprod", out)
    return cumprod(replace_nan(a, value=1), axis, dtype)


@documented(_CUMULATIVE_WITH_INITIAL)
def cumulative_sum(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """Compute the cumulative sum of the elements along an axis, as the array API standard defines it.

    Args:
        dtype: the dtype of the result. By default that of `x`; booleans and integers that are narrower than the default
            integer become default integers, as in `sum`.
        include_initial: whether the result starts with 0, the sum of no elements.

    Returns:
        The cumulative sums, with one more element along `axis` if `include_initial` is set.

    Example:
        >>> jnp.cumulative_sum(jnp.array([1, 2, 3]), include_initial=True)
        Array([0, 1, 3, 6], dtype=int32)
    """
    dtype = sum_dtype(type_of(x, "cumulative_sum")) if dtype is None else dtype
    return _cumulative("cumulative_sum", x, SUM, axis, dtype, include_initial)


@documented(_CUMULATIVE_WITH_INITIAL)
def cumulative_prod(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """Compute the cumulative product of the elements along an axis, as the array API standard defines it.

    Args:
        dtype: the dtype of the result. By default that of `x`; booleans become integers.
        include_initial: whether the result starts with 1, the product of no elements.

    Returns:
        The cumulative products, with one more element along `axis` if `include_initial` is set.

    Example:
        >>> jnp.cumulative_prod(jnp.array([1, 2, 3]), include_initial=True)
        Array([1, 1, 2, 6], dtype=int32)
    """
    return _cumulative("cumulative_prod", x, PROD, axis, dtype, include_initial)


def _cumulative(
    name: str, x: ArrayLike, reduction: Reduction, axis: int | None, dtype: DTypeLike | None, include_initial: bool
) -> Any:
    ndim = type_of(x, name).ndim
    if axis is None and ndim != 1:
        raise ValueError(f"{name}: {type_of(x)} has rank {ndim}, so `axis` is required")
    out_dtype = requested_dtype(name, dtype)
    result = sorting.cumulative_along(x, reduction=reduction, axis=0 if axis is None else axis, dtype=out_dtype)
    if not include_initial:
        return result
    return _prepend(result, dim=canonical_axis(name, axis or 0, ndim), value=int(reduction is PROD))


@compiled_function
def _prepend(x: Array, *, dim: int, value: int) -> Any:
    shape = x.type.shape
    return Concatenate(dim)(full((*shape[:dim], 1, *shape[dim + 1 :]), value, x.type.dtype), x)


@documented(_SORT, returns="The sorted array.")
def sort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """Sort the elements along an axis.

    NaN counts as larger than all numbers. The sort is always stable.

    Example:
        >>> jnp.sort(jnp.array([3, 1, 2]), descending=True)
        Array([3, 2, 1], dtype=int32)
    """
    _check_kind_and_order("sort", kind, order)
    return sorting.sort_along(a, axis=axis, descending=bool(descending))


@documented(_SORT, returns="The indices along `axis`.")
def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: DTypeLike | None = None,
) -> Array:
    """Return the indices that sort the elements along an axis.

    NaN counts as larger than all numbers. Equal elements keep their order, also in descending order.

    Args:
        dtype: the dtype of the indices. By default the default integer dtype.

    Example:
        >>> jnp.argsort(jnp.array([30, 10, 20]))
        Array([1, 2, 0], dtype=int32)
    """
    _check_kind_and_order("argsort", kind, order)
    return sorting.argsort_along(a, axis=axis, descending=bool(descending), dtype=requested_dtype("argsort", dtype))


def _check_kind_and_order(name: str, kind: object, order: object) -> None:
    if kind is not None or order is not None:
        raise TypeError(f"{name}: the only algorithm is a stable sort; omit `kind` and `order`")


@documented(_PARTITION, returns="The partitioned array, which is in fact sorted.")
def partition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Partition the elements along an axis around the k-th smallest one.

    The elements before index `kth` of the result are not larger than the one at `kth`, those after it not smaller.

    Example:
        >>> jnp.partition(jnp.array([3, 1, 2]), 1)
        Array([1, 2, 3], dtype=int32)
    """
    _check_kth("partition", a, kth, axis)
    return sort(a, axis)


@documented(_PARTITION, returns="The indices along `axis`.")
def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Return the indices that partition the elements along an axis around the k-th smallest one, as `partition` does.

    Example:
        >>> jnp.argpartition(jnp.array([30, 10, 20]), 1)
        Array([1, 2, 0], dtype=int32)
    """
    _check_kth("argpartition", a, kth, axis)
    return argsort(a, axis)


def _check_kth(name: str, a: ArrayLike, kth: int, axis: int) -> None:
    a_type = type_of(a, name)
    size = a_type.shape[canonical_axis(name, axis, a_type.ndim)]
    if not -size <= operator.index(kth) < size:
        raise ValueError(f"{name}: kth={kth} is out of bounds for axis {axis} of {a_type}, which has size {size}")


def lexsort(keys: Arrays, axis: int = -1, *, batch_size: int = 16) -> Array:
    """Return the indices that sort by several keys.

    The last key is the primary one. Ties are ordered by the key before it, and so on.

    Args:
        keys: the keys, a sequence of arrays of equal shapes, or an array whose rows are the keys.
        axis: the axis to sort along.
        batch_size: ignored: all keys are sorted at once.

    Returns:
        The indices along `axis`.

    Raises:
        TypeError: if there is no key, if the shapes differ, or if a key is not an array or a number.
        ValueError: if `axis` does not exist.

    Example:
        >>> jnp.lexsort((jnp.array([2, 1, 3]), jnp.array([1, 1, 0])))
        Array([2, 1, 0], dtype=int32)
    """
    key_list = [keys[index] for index in range(len(keys))]
    if not key_list:
        raise TypeError("lexsort: at least one key is required")
    return _lexsort(*key_list, axis=axis)


@compiled_function
def _lexsort(*keys: ArrayLike, axis: int) -> Any:
    arrays = [as_operand(key, "lexsort") for key in reversed(keys)]
    if not arrays[0].type.ndim:
        return full((), 0, default_dtype("int*"))
    dim = canonical_axis("lexsort", axis, arrays[0].type.ndim)
    index = Iota(arrays[0].type.shape, dim, np.dtype(np.int32))()
    *_, order = Sort(dim, len(arrays))(*arrays, index)
    return astype_weak(order, default_dtype("int*"), False)


def searchsorted(
    a: ArrayLike, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None, *, method: str = "scan"
) -> Array:
    """Return the indices at which to insert elements into a sorted array so that it stays sorted.

    NaN counts as larger than all numbers. On a mesh, the binary search needs no communication if `a` is replicated.

    Args:
        a: the sorted array, of rank 1.
        v: the elements to insert, of any shape.
        side: "left" inserts before elements of `a` that are equal, "right" after them.
        sorter: indices that sort `a`, if it is not sorted.
        method: "compare_all" compares all pairs, "sort" sorts both arrays together. "scan", "scan_unrolled" and
            "default" are a binary search, or compare all pairs of small arrays.

    Returns:
        The indices, of the shape of `v`.

    Raises:
        TypeError: if `a` or `v` is not an array or a number.
        ValueError: if `a` is not of rank 1, or if `side` or `method` is unknown.

    Example:
        >>> jnp.searchsorted(jnp.array([1, 2, 2, 3]), jnp.array([2, 5]))
        Array([1, 4], dtype=int32)
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', not {side!r}")
    if method not in _SEARCH_METHODS:
        raise ValueError(f"searchsorted: method must be one of {', '.join(_SEARCH_METHODS)}, not {method!r}")
    if type_of(a, "searchsorted").ndim != 1:
        raise ValueError(f"searchsorted: a must have rank 1, not {type_of(a)}")
    if sorter is None:
        return _searchsorted(a, v, right=side == "right", method=method)
    return _searchsorted(a, v, sorter, right=side == "right", method=method)


_SEARCH_METHODS = ("scan", "scan_unrolled", "sort", "compare_all", "default")
_MAX_PAIRS = 2**16  # the largest number of pairs for which comparing all of them replaces the binary search


@compiled_function
def _searchsorted(a: ArrayLike, v: ArrayLike, *sorter: ArrayLike, right: bool, method: str) -> Any:
    dtype, weak = promote_dtypes("searchsorted", (type_of(a), type_of(v, "searchsorted")))
    row, queries = (stop_gradient(astype_weak(as_operand(x, "searchsorted"), dtype, weak)) for x in (a, v))
    if sorter:
        row = gather_1d(row, as_operand(sorter[0], "searchsorted"))
    index_dtype = default_dtype("int*")
    if not row.type.size or not queries.type.size:
        return full(queries.type.shape, 0, index_dtype)
    if method == "sort":
        return astype_weak(_search_by_sort(row, queries, right), index_dtype, False)
    if method == "compare_all" or row.type.size * queries.type.size <= _MAX_PAIRS:
        shape = (*queries.type.shape, row.type.size)
        last = len(shape) - 1
        x, y = Broadcast(shape, (last,))(row), Broadcast(shape, tuple(range(last)))(queries)
        return Sum((last,))(Convert(index_dtype)(_is_before(x, y, right)))
    return astype_weak(_binary_search(row, queries, right), index_dtype, False)


def _binary_search(row: Array, queries: Array, right: bool) -> Any:
    """Search all queries at once; the loop has the static trip count log2(size) + 1."""
    size = row.type.size

    def step(_: Any, interval: Any) -> Any:
        low, high = map(Expr, interval)
        middle = (low + high) / 2
        in_upper_half = Expr(_is_before(gather_1d(row, middle.array), queries, right)) & (low < high)
        return where(in_upper_half, middle + 1, low).array, where(in_upper_half, high, middle).array

    interval = tuple(full(queries.type.shape, end, np.int32) for end in (0, size))
    return fori_loop(0, size.bit_length(), step, interval)[0]


def _search_by_sort(row: Array, queries: Array, right: bool) -> Any:
    """Sort row and queries together, count the elements of the row before each query, and undo the permutation."""
    flat = Reshape((queries.type.size,))(queries)
    ones, zeros = (full((x.type.size,), value, np.int32) for x, value in ((row, 1), (flat, 0)))
    is_row = Concatenate(0)(ones, zeros)
    joint = Concatenate(0)(row, flat)
    index = Iota(joint.type.shape, 0, np.dtype(np.int32))()
    tie_breaker = is_row if not right else Sub()(full_like(is_row, 1), is_row)
    _, _, sorted_is_row, source = Sort(0, 2)(joint, tie_breaker, is_row, index)
    _, counts = Sort(0)(source, Cumulative(0, SUM)(sorted_is_row))
    return Reshape(queries.type.shape)(slice_along(counts, 0, row.type.size, joint.type.size))


def _is_before(x: Array, y: Array, or_equal: bool) -> Any:
    """Compare `x < y`, or `x <= y` if `or_equal`, with NaN as the largest value."""
    result = Compare("LE" if or_equal else "LT")(x, y)
    if not is_float(x.type.dtype):
        return result
    y_is_nan = Compare("NE")(y, y)
    return result | (y_is_nan if or_equal else y_is_nan & Compare("EQ")(x, x))


@documented(QUANTILE, returns="The quantiles, with the dims of `q` first; NaN where any element is NaN.")
def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Compute quantiles of the elements along axes.

    On a mesh each device sorts complete rows: reduced axes that are sharded are resharded, other axes stay sharded.

    Args:
        method: the interpolation between the two elements next to the quantile: "linear", "lower", "higher", "nearest"
            or "midpoint"; or "inverted_cdf", the first element at which the cumulative distribution reaches `q`.
        weights: the weights of the elements, of the shape of `a`, or one per index along a single `axis`. Only with
            method "inverted_cdf".

    Example:
        >>> jnp.quantile(jnp.array([1.0, 2.0, 4.0]), 0.25)
        Array(1.5, dtype=float32)
    """
    return quantile_along("quantile", a, q, axis, out, method, keepdims, weights)


@documented(QUANTILE, returns="The percentiles, with the dims of `q` first; NaN where any element is NaN.")
def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Compute percentiles of the elements along axes.

    Args:
        q: the percentages, between 0 and 100.

    Example:
        >>> jnp.percentile(jnp.array([1.0, 2.0, 4.0]), 75)
        Array(3., dtype=float32)
    """
    with decided_by(out_sharding):
        percentiles = quantile_along("percentile", a, q, axis, out, method, keepdims, weights)
    return constrain_sharding(percentiles, out_sharding)


@documented(MEDIAN)
def median(
    a: ArrayLike, axis: Axes = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """Compute the median of the elements along axes.

    Returns:
        The medians, the mean of the two middle elements if their number is even; NaN where any element is NaN.

    Example:
        >>> jnp.median(jnp.array([[1, 9], [3, 5]]), axis=1)
        Array([5., 4.], dtype=float32)
    """
    return quantile_along("median", a, 0.5, axis, out, "linear", keepdims, None)


def quantile_along(
    name: str,
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes,
    out: None,
    method: str,
    keepdims: bool,
    weights: ArrayLike | None,
    ignore_nan: bool = False,
) -> Any:
    """Compute the function `name` of the family quantile, percentile, median, with NaN ignored if `ignore_nan`."""
    reject_out(name, out)
    if method not in _QUANTILE_METHODS:
        raise ValueError(f"{name}: method must be one of {', '.join(_QUANTILE_METHODS)}, not {method!r}")
    if weights is not None and method != "inverted_cdf":
        raise NotImplementedError(f"{name}: weights need method 'inverted_cdf', not {method!r}")
    types = type_of(a, name), type_of(q, name)
    if any(each.dtype.kind == "c" for each in types):
        raise ValueError(f"{name}: complex numbers have no order: {types[0]}, {types[1]}")
    dims = reduced_dims(name, static_axes(axis), types[0])
    if not math.prod(types[0].shape[dim] for dim in dims):
        raise ValueError(f"{name}: dims {dims} of {types[0]} have no elements")
    is_percentile = name.endswith("percentile")
    optional_weights = () if weights is None else (_broadcast_weights(name, weights, types[0], axis),)
    return _quantile(
        a,
        q,
        *optional_weights,
        dims=dims,
        method=method,
        keepdims=keepdims,
        ignore_nan=ignore_nan,
        scale=100 if is_percentile else 1,
    )


def _broadcast_weights(name: str, weights: ArrayLike, x: ArrayType, axis: Axes) -> Any:
    """Broadcast weights to the shape of `x`."""
    w = type_of(weights, name)
    if w.shape == x.shape:
        return weights
    if not (isinstance(axis, int) and w.shape == (x.shape[canonical_axis(name, axis, x.ndim)],)):
        raise ValueError(f"{name}: weights {w} must have the shape of {x}, or one weight per index along axis {axis}")
    dim = canonical_axis(name, axis, x.ndim)
    return methods.broadcast_to(
        methods.reshape(weights, shape=tuple(size if d == dim else 1 for d, size in enumerate(x.shape))), shape=x.shape
    )


@compiled_function
def _quantile(
    a: ArrayLike,
    q: ArrayLike,
    *weights: Array,
    dims: tuple[int, ...],
    method: str,
    keepdims: bool,
    ignore_nan: bool,
    scale: int,
) -> Any:
    """Compute quantiles along `dims` by a sort. `q` is divided by `scale` first."""
    x, q = as_inexact(a, "quantile"), as_inexact(q, "quantile")
    batch_dims = tuple(dim for dim in range(x.type.ndim) if dim not in dims)
    batch_shape = tuple(x.type.shape[dim] for dim in batch_dims)
    last, count = len(batch_shape), math.prod(x.type.shape[dim] for dim in dims)
    out_dtype = x.type.dtype
    compute_dtype = numpy_carrier(out_dtype)

    def as_rows(y: ArrayLike) -> Any:
        wide = astype_weak(as_operand(y), compute_dtype, False)
        return Reshape((*batch_shape, count))(permute(wide, (*batch_dims, *dims)))

    rows = as_rows(x)
    probabilities = Reshape((q.type.size,))(astype_weak(q, compute_dtype, False))
    if scale != 1:
        probabilities = probabilities / scale
    shape = (*batch_shape, q.type.size)
    probabilities = Broadcast(shape, (last,))(probabilities)
    is_nan = Compare("NE")(rows, rows)
    if weights:
        w = as_rows(weights[0])
        sorted_rows, sorted_weights = Sort(last)(rows, Select()(is_nan, full_like(rows, 0), w) if ignore_nan else w)
        cumulative = Cumulative(last, SUM)(sorted_weights)
        total = slice_along(cumulative, last, count - 1, count)
        result = _inverted_weighted_cdf(sorted_rows, cumulative, total, probabilities)
    else:
        (sorted_rows,) = Sort(last)(rows)
        if ignore_nan:
            counts = Sum((last,))(Convert(compute_dtype)(Not()(is_nan)))
        else:
            counts = full(batch_shape, count, compute_dtype)
        result = _interpolate(sorted_rows, Broadcast(shape, tuple(range(last)))(counts), probabilities, method)
    result_is_nan = (ReduceAnd if ignore_nan else ReduceOr)((last,))(is_nan)
    result = Select()(Broadcast(shape, tuple(range(last)))(result_is_nan), full_like(result, np.nan), result)
    result = permute(astype_weak(result, out_dtype, False), (last, *range(last)))
    sizes = [1 if dim in dims else size for dim, size in enumerate(x.type.shape)] if keepdims else list(batch_shape)
    return Reshape((*q.type.shape, *sizes))(result)


def _interpolate(sorted_rows: Array, counts: Array, probabilities: Array, method: str) -> Any:
    """Return the quantiles of sorted rows, of which the first `counts` elements are valid."""
    position = _QUANTILE_METHODS[method](probabilities, counts)
    position = Clamp()(full_like(position, 0), position, Max()(counts - 1, full_like(counts, 0)))
    low, high = (
        _take_from_rows(sorted_rows, Convert(np.dtype(np.int32))(rounding()(position))) for rounding in (Floor, Ceil)
    )
    weight = position - Floor()(position)
    interpolated = low * (1 - weight) + high * weight
    # If the weight of `high` is 0 and `high` is infinite, the product would be NaN.
    return where(Expr(weight) == 0, Expr(low), Expr(interpolated)).array


def _inverted_weighted_cdf(sorted_rows: Array, cumulative: Array, total: Array, probabilities: Array) -> Any:
    """Return the first elements of sorted rows whose cumulative weight reaches the probability times the total."""
    last = sorted_rows.type.ndim - 1
    count = sorted_rows.type.shape[last]
    batch_dims = tuple(range(last))
    pairs = (*probabilities.type.shape, count)
    total = Broadcast(probabilities.type.shape, batch_dims)(Reshape(total.type.shape[:-1])(total))
    target = Broadcast(pairs, (*batch_dims, last))(probabilities * total)
    reached = Broadcast(pairs, (*batch_dims, last + 1))(cumulative)
    index = Sum((last + 1,))(Convert(np.dtype(np.int32))(Compare("LT")(reached, target)))
    return _take_from_rows(sorted_rows, Clamp()(full_like(index, 0), index, full_like(index, count - 1)))


def _linear_position(probabilities: Array, counts: Array) -> Any:
    return probabilities * (counts - 1)


def _midpoint_position(probabilities: Array, counts: Array) -> Any:
    position = _linear_position(probabilities, counts)
    return (Floor()(position) + Ceil()(position)) * 0.5


# The position of a quantile in a sorted row with `counts` elements; a fraction interpolates between two of them.
_QUANTILE_METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": _linear_position,
    "lower": lambda probabilities, counts: Floor()(_linear_position(probabilities, counts)),
    "higher": lambda probabilities, counts: Ceil()(_linear_position(probabilities, counts)),
    "nearest": lambda probabilities, counts: Round()(_linear_position(probabilities, counts)),
    "midpoint": _midpoint_position,
    "inverted_cdf": lambda probabilities, counts: Ceil()(probabilities * counts) - 1,
}


def gather_1d(row: Array, indices: Array) -> Any:
    """Gather elements of a 1-d array at indices of any shape; sharded dims of the indices stay sharded."""
    index = astype_weak(indices, np.dtype(np.int32), False)
    return Gather((), (0,), (), (), (0,), (1,))(row, Reshape((*index.type.shape, 1))(index))


def _take_from_rows(x: Array, indices: Array) -> Any:
    """Gather elements along the last dim of `x`, at separate indices for each row."""
    last = x.type.ndim - 1
    batch_dims = tuple(range(last))
    op = Gather((), (last,), batch_dims, batch_dims, (last,), (1,) * x.type.ndim)
    return op(x, Reshape((*indices.type.shape, 1))(indices))
