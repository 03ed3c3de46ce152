"""Running totals, sorting, and what is found in sorted arrays."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import carrier, is_float
from shardwise.compiler.ops import ordering
from shardwise.compiler.ops.aggregate import ReduceOr
from shardwise.compiler.ops.bitwise import And, Or
from shardwise.compiler.ops.cumulative import Cumulative
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Mul, Select, Sub, like
from shardwise.compiler.ops.extremum import Clamp
from shardwise.compiler.ops.gather import taking
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    composed,
    dims_of,
    static_axes,
    type_of,
)
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.rounding import Ceil, Floor, Round
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full, permuted
from shardwise.compiler.ops.slicing import Concatenate, along
from shardwise.compiler.ops.sort import Sort


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The sums of the elements up to each along `axis`; without one, of the flattened array."""
    _no_out("cumsum", out)
    return ordering.cumulated(a, how="sum", axis=axis, dtype=dtype)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The products of the elements up to each along `axis`; without one, of the flattened array."""
    _no_out("cumprod", out)
    return ordering.cumulated(a, how="prod", axis=axis, dtype=dtype)


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """As `cumsum`, with NaN taken for 0."""
    _no_out("nancumsum", out)
    return cumsum(_without_nan(a, number=0), axis, dtype)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """As `cumprod`, with NaN taken for 1."""
    _no_out("nancumprod", out)
    return cumprod(_without_nan(a, number=1), axis, dtype)


@composed
def _without_nan(x: Any, *, number: int) -> Any:
    x = as_operand(x, "nancumsum")
    return Select()(Compare("NE")(x, x), like(x, number), x)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """The sums of the elements up to each along `axis`; with `include_initial` that of none comes first."""
    return _cumulative("cumulative_sum", x, "sum", axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """The products of the elements up to each along `axis`; with `include_initial` that of none comes first."""
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
    """The elements along `axis` in order, NaN last; without one, those of the flattened array."""
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
    """Where the elements along `axis` would be taken from to be in order; of equal ones the first comes first."""
    _one_kind("argsort", kind, order)
    return ordering.order_along(a, axis=axis, descending=bool(descending), dtype=dtype)


def _one_kind(name: str, kind: Any, order: Any) -> None:
    if kind is not None or order is not None:
        raise TypeError(f"{name}: there is one kind, which keeps equal elements in order: leave `kind` and `order` out")


def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """The elements along `axis` so that none before place `kth` is larger than the one there, none after it smaller."""
    _check_place("partition", a, kth, axis)
    return sort(a, axis)


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """Where along `axis` to take elements from, so that they are as `partition` gives them."""
    _check_place("argpartition", a, kth, axis)
    return argsort(a, axis)


def _check_place(name: str, a: Any, kth: int, axis: int) -> None:
    kind = type_of(a, name)
    size = kind.shape[dim_of(name, axis, kind.ndim)]
    if not -size <= operator.index(kth) < size:
        raise ValueError(f"{name}: place {kth} does not exist along axis {axis} of {kind}")


def lexsort(keys: Any, axis: int = -1) -> Any:
    """Where along `axis` elements would be taken from to be in order of the last of `keys`, where that is equal of the
    one before it, and so on."""
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
    equal, with "right" after them. `method` is how JAX does it; here sizes decide.
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is 'left' or 'right', not {side!r}")
    if type_of(a, "searchsorted").ndim != 1:
        raise ValueError(f"searchsorted: a must be one row, not {type_of(a)}")
    if sorter is not None:
        raise NotImplementedError("searchsorted: sort `a` first: `sorter` is not supported")
    return _searched(a, v, after=side == "right")


_ALL_PAIRS = 2**16


@composed
def _searched(a: Any, v: Any, *, after: bool) -> Any:
    dtype, weak = meet("searchsorted", (type_of(a), type_of(v, "searchsorted")))
    row, wanted = (astype_weak(as_operand(x, "searchsorted"), dtype, weak) for x in (a, v))
    index = default_dtype("int*")
    if row.type.size * wanted.type.size <= _ALL_PAIRS:
        shape = (*wanted.type.shape, row.type.size)
        x, y = (
            Broadcast(shape, dims)(z) for z, dims in ((row, (len(shape) - 1,)), (wanted, tuple(range(len(shape) - 1))))
        )
        comes_first = _is_before(x, y, after)
        return Sum((len(shape) - 1,))(Convert(index)(comes_first))
    # All in one row in order: how many of `a` come before each of `v`; and back to the places that these had.
    flat = Reshape((wanted.type.size,))(wanted)
    mine, theirs = (full((x.type.size,), mark, np.int32) for x, mark in ((row, 1), (flat, 0)))
    marks = Concatenate(0)(mine, theirs)
    together = Concatenate(0)(row, flat)
    places = Iota(together.type.shape, 0, np.dtype(np.int32))()
    rank = marks if not after else Sub()(like(marks, 1), marks)
    _, _, is_mine, came_from = Sort(0, 2)(together, rank, marks, places)
    _, found = Sort(0)(came_from, Cumulative(0, "sum")(is_mine))
    counts = along(found, 0, row.type.size, together.type.size)
    return astype_weak(Reshape(wanted.type.shape)(counts), index, False)


def _is_before(x: Any, y: Any, or_equal: bool) -> Any:
    """Whether `x` comes before `y` in order, NaN last."""
    found = Compare("LE" if or_equal else "LT")(x, y)
    if not is_float(x.type.dtype):
        return found
    y_is_nan = Compare("NE")(y, y)
    return Or()(found, y_is_nan if or_equal else And()(y_is_nan, Compare("EQ")(x, x)))


METHODS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda place: place,
    "lower": Floor(),
    "higher": Ceil(),
    "nearest": Round(),
    "midpoint": lambda place: Mul()(Add()(Floor()(place), Ceil()(place)), like(place, 0.5)),
}


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """Below which number the share `q` of the elements along `axis` lies (all dims where none is given); NaN where any
    element is. Several shares make a first dim. `method`: what to give between two elements.
    """
    _no_out("quantile", out)
    return _quantile(a, q, axis=static_axes(axis), method=method, keepdims=keepdims)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """As `quantile`, with shares of a hundred."""
    _no_out("percentile", out)
    return _quantile(a, _hundredths(q), axis=static_axes(axis), method=method, keepdims=keepdims)


def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The element in the middle along `axis` (of all dims where none is given), or the mean of the two there."""
    _no_out("median", out)
    return _quantile(a, 0.5, axis=static_axes(axis), method="linear", keepdims=keepdims)


@composed
def _hundredths(q: Any) -> Any:
    q = as_inexact(q, "percentile")
    return Mul()(q, like(q, 0.01))


@composed
def _quantile(a: Any, q: Any, *, axis: Any, method: str, keepdims: bool) -> Any:
    if method not in METHODS:
        raise ValueError(f"quantile: method {method!r} is none of {', '.join(METHODS)}")
    x, share = as_inexact(a, "quantile"), as_inexact(q, "quantile")
    if not (is_float(x.type.dtype) and share.type.ndim < 2):
        raise ValueError(f"quantile: needs real numbers and one share or a row of them, not {x.type} and {share.type}")
    dims = (
        tuple(range(x.type.ndim))
        if axis is None
        else dims_of("quantile", (axis,) if isinstance(axis, int) else axis, x.type)
    )
    kept = tuple(dim for dim in range(x.type.ndim) if dim not in dims)
    lead = tuple(x.type.shape[dim] for dim in kept)
    count = math.prod(x.type.shape[dim] for dim in dims)
    if not count:
        raise ValueError(f"quantile: dims {dims} of {x.type} have no elements")
    out = astype_weak(x, x.type.dtype, False).type.dtype
    row = Reshape((*lead, count))(permuted(astype_weak(x, carrier(out), False), (*kept, *dims)))
    last = len(lead)
    (ordered,) = Sort(last)(row)
    shares = Reshape((share.type.size,))(astype_weak(share, row.type.dtype, False))
    place = METHODS[method](Mul()(shares, like(shares, count - 1)))
    place = Clamp()(like(place, 0), place, like(place, count - 1))
    low, high = (_at(ordered, step()(place)) for step in (Floor, Ceil))
    weight = Broadcast(high.type.shape, (last,))(Sub()(place, Floor()(place)))
    between = Add()(Mul()(low, Sub()(like(weight, 1), weight)), Mul()(high, weight))
    # Next to an infinity, nothing of it must stay nothing.
    found = Select()(Compare("EQ")(weight, like(weight, 0)), low, between)
    spoilt = ReduceOr((last,))(Compare("NE")(row, row))
    found = Select()(Broadcast(found.type.shape, tuple(range(last)))(spoilt), like(found, np.nan), found)
    found = permuted(astype_weak(found, out, False), (last, *range(last)))
    sizes = [1 if dim in dims else size for dim, size in enumerate(x.type.shape)] if keepdims else list(lead)
    return Reshape((*share.type.shape, *sizes))(found)


def _at(x: Any, places: Any) -> Any:
    """The elements along the last dim of `x` at a row of places."""
    row = Convert(np.dtype(np.int32))(places)
    return taking(x.type.shape, x.type.ndim - 1)(x, Reshape((*row.type.shape, 1))(row))


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(f"{name}: arrays are not written to, so `out` must be None")
