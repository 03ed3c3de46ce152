"""Running totals, sorting, and what is found in sorted arrays."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.api.control import fori_loop
from shardwise.compiler.ir.types import ArrayType, carrier, is_float
from shardwise.compiler.ops import methods, ordering
from shardwise.compiler.ops.aggregate import ReduceAnd, ReduceOr
from shardwise.compiler.ops.along_axes import reduced_dims
from shardwise.compiler.ops.bitwise import And, Not, Or
from shardwise.compiler.ops.cumulative import Cumulative
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Div, Mul, Select, Sub, like
from shardwise.compiler.ops.extremum import Clamp, Max
from shardwise.compiler.ops.gather import Gather
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    composed,
    no_out,
    static_axes,
    type_of,
)
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.rounding import Ceil, Floor, Round
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full, permuted
from shardwise.compiler.ops.slicing import Concatenate, along
from shardwise.compiler.ops.sort import Sort
from shardwise.lax.gradient import stop_gradient
from shardwise.lax.shape import laid_out


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The sums of the elements up to each along `axis`; without one, of the flattened array.

    >>> jnp.cumsum(jnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    no_out("cumsum", out)
    return ordering.cumulated(a, how="sum", axis=axis, dtype=dtype)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The products of the elements up to each along `axis`; without one, of the flattened array.

    >>> jnp.cumprod(jnp.array([1, 2, 3]))
    Array([1, 2, 6], dtype=int32)
    """
    no_out("cumprod", out)
    return ordering.cumulated(a, how="prod", axis=axis, dtype=dtype)


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """As `cumsum`, with NaN taken for 0.

    >>> jnp.nancumsum(jnp.array([1.0, jnp.nan, 3.0]))
    Array([1., 1., 4.], dtype=float32)
    """
    no_out("nancumsum", out)
    return cumsum(_without_nan(a, number=0), axis, dtype)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """As `cumprod`, with NaN taken for 1.

    >>> jnp.nancumprod(jnp.array([2.0, jnp.nan, 3.0]))
    Array([2., 2., 6.], dtype=float32)
    """
    no_out("nancumprod", out)
    return cumprod(_without_nan(a, number=1), axis, dtype)


@composed
def _without_nan(x: Any, *, number: int) -> Any:
    x = as_operand(x, "nancumsum")
    return Select()(Compare("NE")(x, x), like(x, number), x)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """The sums of the elements up to each along `axis`; with `include_initial` that of none comes first.

    >>> jnp.cumulative_sum(jnp.array([1, 2, 3]), include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    return _cumulative("cumulative_sum", x, "sum", axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """The products of the elements up to each along `axis`; with `include_initial` that of none comes first.

    >>> jnp.cumulative_prod(jnp.array([1, 2, 3]), include_initial=True)
    Array([1, 1, 2, 6], dtype=int32)
    """
    return _cumulative("cumulative_prod", x, "prod", axis, dtype, include_initial)


def _cumulative(name: str, x: Any, how: str, axis: int | None, dtype: Any, include_initial: bool) -> Any:
    ndim = type_of(x, name).ndim
    if axis is None and ndim != 1:
        raise ValueError(f"{name}: {type_of(x)} has {ndim} axes: say which with `axis`")
    found = ordering.cumulated(x, how=how, axis=0 if axis is None else axis, dtype=dtype)
    return _with_first(found, dim=dim_of(name, axis or 0, ndim), first=int(how == "prod")) if include_initial else found


@composed
def _with_first(x: Any, *, dim: int, first: int) -> Any:
    shape = x.type.shape
    return Concatenate(dim)(full((*shape[:dim], 1, *shape[dim + 1 :]), first, x.type.dtype), x)


def sort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Any:
    """The elements along `axis` in order, NaN last; without one, those of the flattened array.

    >>> jnp.sort(jnp.array([3, 1, 2]), descending=True)
    Array([3, 2, 1], dtype=int32)
    """
    _one_kind("sort", kind, order)
    return ordering.sorted_along(a, axis=axis, descending=bool(descending))


def argsort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
) -> Any:
    """Where the elements along `axis` would be taken from to be in order; of equal ones the first comes first.

    >>> jnp.argsort(jnp.array([30, 10, 20]))
    Array([1, 2, 0], dtype=int32)
    """
    _one_kind("argsort", kind, order)
    return ordering.order_along(a, axis=axis, descending=bool(descending), dtype=dtype)


def _one_kind(name: str, kind: Any, order: Any) -> None:
    if kind is not None or order is not None:
        raise TypeError(f"{name}: there is one kind, which keeps equal elements in order: leave `kind` and `order` out")


def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """The elements along `axis` so that none before place `kth` is larger than the one there, none after it smaller.

    >>> jnp.partition(jnp.array([3, 1, 2]), 1)
    Array([1, 2, 3], dtype=int32)
    """
    _check_place("partition", a, kth, axis)
    return sort(a, axis)


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """Where along `axis` to take elements from, so that they are as `partition` gives them.

    >>> jnp.argpartition(jnp.array([30, 10, 20]), 1)
    Array([1, 2, 0], dtype=int32)
    """
    _check_place("argpartition", a, kth, axis)
    return argsort(a, axis)


def _check_place(name: str, a: Any, kth: int, axis: int) -> None:
    kind = type_of(a, name)
    size = kind.shape[dim_of(name, axis, kind.ndim)]
    if not -size <= operator.index(kth) < size:
        raise ValueError(f"{name}: place {kth} does not exist along axis {axis} of {kind}")


def lexsort(keys: Any, axis: int = -1) -> Any:
    """Where along `axis` elements would be taken from to be in order of the last of `keys`, where that is equal of the
    one before it, and so on.

    >>> jnp.lexsort((jnp.array([2, 1, 3]), jnp.array([1, 1, 0])))
    Array([2, 1, 0], dtype=int32)
    """
    rows = [keys[number] for number in range(len(keys))]
    if not rows:
        raise TypeError("lexsort: needs at least one key")
    return _lexsorted(*rows, axis=axis)


@composed
def _lexsorted(*keys: Any, axis: int) -> Any:
    arrays = [as_operand(key, "lexsort") for key in reversed(keys)]
    if not arrays[0].type.ndim:
        return full((), 0, default_dtype("int*"))
    dim = dim_of("lexsort", axis, arrays[0].type.ndim)
    index = Iota(arrays[0].type.shape, dim, np.dtype(np.int32))()
    *_, found = Sort(dim, len(arrays))(*arrays, index)
    return astype_weak(found, default_dtype("int*"), False)


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
    """Before which place of `a`, a sorted row, each element of `v` belongs: with `side` "left" before those that are
    equal, with "right" after them. `sorter`: an order in which `a` is sorted.

    `method`: "compare_all" compares all pairs, "sort" sorts both together, and all others halve the row again and again
    (a short one is compared at once). On a mesh the latter need nothing of other devices where `a` is on all of them.

    >>> jnp.searchsorted(jnp.array([1, 2, 2, 3]), jnp.array([2, 5]))
    Array([1, 4], dtype=int32)
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is 'left' or 'right', not {side!r}")
    if method not in _SEARCHES:
        raise ValueError(f"searchsorted: method {method!r} is none of {', '.join(_SEARCHES)}")
    if type_of(a, "searchsorted").ndim != 1:
        raise ValueError(f"searchsorted: a must be one row, not {type_of(a)}")
    if sorter is None:
        return _searched(a, v, after=side == "right", method=method)
    return _searched(a, v, sorter, after=side == "right", method=method)


_SEARCHES = ("scan", "scan_unrolled", "sort", "compare_all", "default")
_ALL_PAIRS = 2**16


@composed
def _searched(a: Any, v: Any, *sorter: Any, after: bool, method: str) -> Any:
    dtype, weak = meet("searchsorted", (type_of(a), type_of(v, "searchsorted")))
    row, wanted = (stop_gradient(astype_weak(as_operand(x, "searchsorted"), dtype, weak)) for x in (a, v))
    if sorter:
        row = row_at(row, as_operand(sorter[0], "searchsorted"))
    index = default_dtype("int*")
    if not row.type.size or not wanted.type.size:
        return full(wanted.type.shape, 0, index)
    if method == "sort":
        return astype_weak(_together(row, wanted, after), index, False)
    if method == "compare_all" or row.type.size * wanted.type.size <= _ALL_PAIRS:
        shape = (*wanted.type.shape, row.type.size)
        x, y = (
            Broadcast(shape, dims)(z) for z, dims in ((row, (len(shape) - 1,)), (wanted, tuple(range(len(shape) - 1))))
        )
        comes_first = _is_before(x, y, after)
        return Sum((len(shape) - 1,))(Convert(index)(comes_first))
    return astype_weak(_halved(row, wanted, after), index, False)


def _halved(row: Any, wanted: Any, after: bool) -> Any:
    """Each turn halves what is left of the row, for all elements at once."""
    size = row.type.size

    def turn(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = Div()(Add()(low, high), like(low, 2))
        goes_on = And()(_is_before(row_at(row, middle), wanted, after), Compare("LT")(low, high))
        return Select()(goes_on, Add()(middle, like(middle, 1)), low), Select()(goes_on, high, middle)

    ends = tuple(full(wanted.type.shape, end, np.int32) for end in (0, size))
    return fori_loop(0, size.bit_length(), turn, ends)[0]


def _together(row: Any, wanted: Any, after: bool) -> Any:
    """All in one row in order: how many of `a` come before each of `v`; and back to the places that these had."""
    flat = Reshape((wanted.type.size,))(wanted)
    mine, theirs = (full((x.type.size,), mark, np.int32) for x, mark in ((row, 1), (flat, 0)))
    marks = Concatenate(0)(mine, theirs)
    together = Concatenate(0)(row, flat)
    places = Iota(together.type.shape, 0, np.dtype(np.int32))()
    rank = marks if not after else Sub()(like(marks, 1), marks)
    _, _, is_mine, came_from = Sort(0, 2)(together, rank, marks, places)
    _, found = Sort(0)(came_from, Cumulative(0, "sum")(is_mine))
    return Reshape(wanted.type.shape)(along(found, 0, row.type.size, together.type.size))


def _is_before(x: Any, y: Any, or_equal: bool) -> Any:
    """Whether `x` comes before `y` in order, NaN last."""
    found = Compare("LE" if or_equal else "LT")(x, y)
    if not is_float(x.type.dtype):
        return found
    y_is_nan = Compare("NE")(y, y)
    return Or()(found, y_is_nan if or_equal else And()(y_is_nan, Compare("EQ")(x, x)))


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """Below which number the share `q` of the elements along `axis` lies (all dims where none is given); NaN where any
    element is. Several shares make the first dims.

    `method`: what to give between two elements: "linear", "lower", "higher", "nearest", "midpoint", or "inverted_cdf",
    the first element up to which the share is reached; there elements may have `weights`, as in `average`. On a mesh
    whole rows are sorted: other dims stay cut.

    >>> jnp.quantile(jnp.array([1.0, 2.0, 4.0]), 0.25)
    Array(1.5, dtype=float32)
    """
    return quantile_along("quantile", a, q, axis, out, method, keepdims, weights)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    out_sharding: Any = None,
) -> Any:
    """As `quantile`, with shares of a hundred.

    >>> jnp.percentile(jnp.array([1.0, 2.0, 4.0]), 75)
    Array(3., dtype=float32)
    """
    return laid_out(quantile_along("percentile", a, q, axis, out, method, keepdims, weights), out_sharding)


def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The element in the middle along `axis` (of all dims where none is given), or the mean of the two there.

    >>> jnp.median(jnp.array([[1, 9], [3, 5]]), axis=1)
    Array([5., 4.], dtype=float32)
    """
    return quantile_along("median", a, 0.5, axis, out, "linear", keepdims, None)


def quantile_along(
    name: str,
    a: Any,
    q: Any,
    axis: Any,
    out: None,
    method: str,
    keepdims: bool,
    weights: Any,
    skips_nan: bool = False,
) -> Any:
    """Quantiles, as the functions of this family name them. `skips_nan`: of the numbers alone."""
    no_out(name, out)
    if method not in METHODS:
        raise ValueError(f"{name}: method {method!r} is none of {', '.join(METHODS)}")
    if weights is not None and method != "inverted_cdf":
        raise NotImplementedError(f"{name}: weights need method 'inverted_cdf', not {method!r}")
    kinds = type_of(a, name), type_of(q, name)
    if any(kind.dtype.kind == "c" for kind in kinds):
        raise ValueError(f"{name}: complex numbers have no order: {kinds[0]}, {kinds[1]}")
    dims = reduced_dims(name, static_axes(axis), kinds[0])
    if not math.prod(kinds[0].shape[dim] for dim in dims):
        raise ValueError(f"{name}: dims {dims} of {kinds[0]} have no elements")
    per_cent = name.endswith("percentile")
    given = () if weights is None else (_weights(name, weights, kinds[0], axis),)
    return _quantile(
        a, q, *given, dims=dims, method=method, keepdims=keepdims, skips_nan=skips_nan, whole=100 if per_cent else 1
    )


def _weights(name: str, weights: Any, x: ArrayType, axis: Any) -> Any:
    """One for each element."""
    w = type_of(weights, name)
    if w.shape == x.shape:
        return weights
    if not (isinstance(axis, int) and w.shape == (x.shape[dim_of(name, axis, x.ndim)],)):
        raise ValueError(f"{name}: weights {w} are neither for each element of {x} nor for each along axis {axis}")
    dim = dim_of(name, axis, x.ndim)
    return methods.broadcast_to(
        methods.reshape(weights, shape=tuple(size if d == dim else 1 for d, size in enumerate(x.shape))), shape=x.shape
    )


@composed
def _quantile(
    a: Any, q: Any, *weights: Any, dims: tuple[int, ...], method: str, keepdims: bool, skips_nan: bool, whole: int
) -> Any:
    x, share = as_inexact(a, "quantile"), as_inexact(q, "quantile")
    kept = tuple(dim for dim in range(x.type.ndim) if dim not in dims)
    lead = tuple(x.type.shape[dim] for dim in kept)
    last, count = len(lead), math.prod(x.type.shape[dim] for dim in dims)
    out, _ = meet("quantile", (x.type, share.type))
    wide = carrier(out)

    def rows(y: Any) -> Any:
        return Reshape((*lead, count))(permuted(astype_weak(as_operand(y), wide, False), (*kept, *dims)))

    row = rows(x)
    shares = Reshape((share.type.size,))(astype_weak(share, wide, False))
    if whole != 1:
        shares = Div()(shares, like(shares, whole))
    shape = (*lead, share.type.size)
    shares = Broadcast(shape, (last,))(shares)
    is_nan = Compare("NE")(row, row)
    if weights:
        each = Select()(is_nan, like(row, 0), rows(weights[0])) if skips_nan else rows(weights[0])
        ordered, sizes = Sort(last)(row, each)
        totals = Cumulative(last, "sum")(sizes)
        found = _at_share(ordered, totals, along(totals, last, count - 1, count), shares)
    else:
        (ordered,) = Sort(last)(row)
        numbers = Sum((last,))(Convert(wide)(Not()(is_nan))) if skips_nan else full(lead, count, wide)
        found = _between(ordered, Broadcast(shape, tuple(range(last)))(numbers), shares, method)
    spoilt = (ReduceAnd if skips_nan else ReduceOr)((last,))(is_nan)
    found = Select()(Broadcast(shape, tuple(range(last)))(spoilt), like(found, np.nan), found)
    found = permuted(astype_weak(found, out, False), (last, *range(last)))
    sizes = [1 if dim in dims else size for dim, size in enumerate(x.type.shape)] if keepdims else list(lead)
    return Reshape((*share.type.shape, *sizes))(found)


def _between(ordered: Any, numbers: Any, shares: Any, method: str) -> Any:
    """What lies at the shares of rows that are in order and have so many numbers each."""
    place = METHODS[method](shares, numbers)
    place = Clamp()(like(place, 0), place, Max()(Sub()(numbers, like(numbers, 1)), like(numbers, 0)))
    low, high = (_each_at(ordered, Convert(np.dtype(np.int32))(step()(place))) for step in (Floor, Ceil))
    weight = Sub()(place, Floor()(place))
    between = Add()(Mul()(low, Sub()(like(weight, 1), weight)), Mul()(high, weight))
    # Next to an infinity, nothing of it must stay nothing.
    return Select()(Compare("EQ")(weight, like(weight, 0)), low, between)


def _at_share(ordered: Any, totals: Any, whole: Any, shares: Any) -> Any:
    """The first elements up to which the shares of all weights are reached."""
    last = ordered.type.ndim - 1
    count = ordered.type.shape[last]
    lead = tuple(range(last))
    pairs = (*shares.type.shape, count)
    reached = Mul()(shares, Broadcast(shares.type.shape, lead)(Reshape(whole.type.shape[:-1])(whole)))
    upto, wanted = Broadcast(pairs, (*lead, last + 1))(totals), Broadcast(pairs, (*lead, last))(reached)
    place = Sum((last + 1,))(Convert(np.dtype(np.int32))(Compare("LT")(upto, wanted)))
    return _each_at(ordered, Clamp()(like(place, 0), place, like(place, count - 1)))


def _share_of(shares: Any, numbers: Any) -> Any:
    return Mul()(shares, Sub()(numbers, like(numbers, 1)))


def _halfway(shares: Any, numbers: Any) -> Any:
    place = _share_of(shares, numbers)
    return Mul()(Add()(Floor()(place), Ceil()(place)), like(place, 0.5))


# The place of a share among so many numbers.
METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": _share_of,
    "lower": lambda shares, numbers: Floor()(_share_of(shares, numbers)),
    "higher": lambda shares, numbers: Ceil()(_share_of(shares, numbers)),
    "nearest": lambda shares, numbers: Round()(_share_of(shares, numbers)),
    "midpoint": _halfway,
    "inverted_cdf": lambda shares, numbers: Sub()(Ceil()(Mul()(shares, numbers)), like(shares, 1)),
}


def row_at(row: Any, places: Any) -> Any:
    """The elements of a row at places of any shape; no dim of them is moved."""
    index = astype_weak(places, np.dtype(np.int32), False)
    return Gather((), (0,), (), (), (0,), (1,))(row, Reshape((*index.type.shape, 1))(index))


def _each_at(x: Any, places: Any) -> Any:
    """The elements along the last dim of `x` at places of each row's own."""
    last = x.type.ndim - 1
    rows = tuple(range(last))
    return Gather((), (last,), rows, rows, (last,), (1,) * x.type.ndim)(x, Reshape((*places.type.shape, 1))(places))
