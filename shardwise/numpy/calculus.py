"""Differences, slopes and areas of tables of numbers, and what lies between their rows. Along a dim that is cut each
device needs one row of its neighbour.
"""

import math
import operator
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops import along_axes
from shardwise.compiler.ops.bitwise import And, Or, Xor
from shardwise.compiler.ops.cumulative import Cumulative
from shardwise.compiler.ops.elementwise import Compare, Select, Sub, like
from shardwise.compiler.ops.extremum import Clamp
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.numeric import absolute, add, divide, multiply, numbers, remainder, subtract
from shardwise.compiler.ops.operands import (
    PYTHON_SCALARS,
    as_inexact,
    as_operand,
    astype_weak,
    composed,
    composed_list,
    static_axes,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.shape import Iota, Reshape, full
from shardwise.compiler.ops.slicing import Concatenate, Pad, along
from shardwise.compiler.ops.sort import Sort
from shardwise.numpy.joining import concatenate
from shardwise.numpy.ordering import row_at, searchsorted


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Each element less the one before it along `axis`, `n` times over; of booleans, whether the two differ.

    `prepend` and `append`: what comes before the first and after the last, a number or an array.

    >>> jnp.diff(jnp.array([1, 4, 9]), prepend=0)
    Array([1, 3, 5], dtype=int32)
    """
    kind = type_of(a, "diff")
    if not kind.ndim:
        raise ValueError(f"diff: {kind} has no dim along which elements follow each other")
    if operator.index(n) < 0:
        raise ValueError(f"diff: n says how often, and cannot be negative: {n}")
    dim = dim_of("diff", axis, kind.ndim)
    if not n:
        return as_operand(a, "diff")
    parts = []
    for end in (prepend, a, append):
        if end is not None:
            one = not type_of(end, "diff").ndim
            parts.append(_spread_row(end, shape=(*kind.shape[:dim], 1, *kind.shape[dim + 1 :])) if one else end)
    return _differences(concatenate(parts, dim) if len(parts) > 1 else a, n=operator.index(n), dim=dim)


@composed
def _spread_row(x: Any, *, shape: tuple[int, ...]) -> Any:
    return stretch(as_operand(x), shape)


@composed
def _differences(x: Any, *, n: int, dim: int) -> Any:
    x = as_operand(x)
    for _ in range(n):
        size = x.type.shape[dim]
        after, before = along(x, dim, min(1, size), size), along(x, dim, 0, max(size - 1, 0))
        x = (Xor() if x.type.dtype == np.bool_ else Sub())(after, before)
    return x


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Each element less the one before it, of all elements in a row; then `to_begin` in front and `to_end` behind.

    >>> jnp.ediff1d(jnp.array([1, 4, 9]), to_end=0)
    Array([3, 5, 0], dtype=int32)
    """
    ends = to_begin is not None, to_end is not None
    return _with_ends(ary, *(end for end in (to_begin, to_end) if end is not None), ends=ends)


@composed
def _with_ends(a: Any, *given: Any, ends: tuple[bool, bool]) -> Any:
    x = as_operand(a, "ediff1d")
    if x.type.dtype == np.bool_:
        raise ValueError("ediff1d: booleans have no difference; convert them to integers")
    found = _differences(Reshape((x.type.size,))(x), n=1, dim=0)
    rows = [astype_weak(as_operand(end, "ediff1d"), x.type.dtype, False) for end in given]
    rows = [Reshape((row.type.size,))(row) for row in rows]
    parts = [*rows[: ends[0]], found, *rows[ends[0] :]]
    return Concatenate(0)(*parts) if len(parts) > 1 else found


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """The slope at each element along each of `axis` (all dims where none is given): half of the difference of its
    neighbours; at the ends, the difference of the last two. One array, or a list where there are several axes.

    `varargs`: how far elements are apart: one number for all, or for each axis a number or the places of elements.

    >>> jnp.gradient(jnp.array([1.0, 4.0, 9.0, 16.0]))
    Array([3., 4., 6., 7.], dtype=float32)
    """
    if edge_order is not None:
        raise NotImplementedError("gradient: ends are the differences of the last two: leave edge_order out")
    kind = type_of(f, "gradient")
    dims = along_axes.reduced_dims("gradient", static_axes(axis), kind)
    for dim in dims:
        if kind.shape[dim] < 2:
            raise ValueError(f"gradient: dim {dim} of {kind} has fewer than 2 elements, and so no slope")
    if len(varargs) not in (0, 1, len(dims)):
        raise TypeError(f"gradient: {len(varargs)} spacings for {len(dims)} axes: give one, or one for each")
    given = list(varargs) * (len(dims) if len(varargs) == 1 else 1)
    for dim, space in zip(dims, given, strict=False):
        place = type_of(space, "gradient")
        if place.ndim > 1 or (place.ndim and place.size != kind.shape[dim]):
            raise ValueError(f"gradient: {place} is no number and has not a place for each along dim {dim} of {kind}")
    found = _slopes(f, *given, dims=dims)
    return found[0] if len(dims) == 1 else list(found)


@composed_list
def _slopes(f: Any, *spaces: Any, dims: tuple[int, ...]) -> list[Any]:
    x = as_inexact(f, "gradient")
    given = spaces or (1,) * len(dims)
    return [_slope(x, dim, space) for dim, space in zip(dims, given, strict=True)]


def _slope(x: Any, dim: int, space: Any) -> Any:
    size = x.type.shape[dim]
    index = Iota(x.type.shape, dim, np.dtype(np.int32))()
    is_first, is_last = (Compare("EQ")(index, like(index, place)) for place in (0, size - 1))
    after = subtract(Select()(is_last, x, _shifted(x, dim, -1)), x)
    before = subtract(x, Select()(is_first, x, _shifted(x, dim, 1)))
    if not type_of(space, "gradient").ndim:
        steps = Select()(Or()(is_first, is_last), like(x, 1), like(x, 2))
        return divide(divide(add(before, after), steps), space)
    places = as_inexact(space, "gradient")
    gaps = _differences(places, n=1, dim=0)
    one = full((1,), 1, gaps.type.dtype, gaps.type.weak)
    row = tuple(size if d == dim else 1 for d in range(x.type.ndim))
    behind, ahead = (Reshape(row)(Concatenate(0)(*parts)) for parts in ((one, gaps), (gaps, one)))
    before, after = divide(before, behind), divide(after, ahead)
    # Of two slopes the one over the shorter gap counts more.
    inside = divide(add(multiply(before, ahead), multiply(after, behind)), add(behind, ahead))
    return Select()(is_first, after, Select()(is_last, before, inside))


def _shifted(x: Any, dim: int, by: int) -> Any:
    """Elements moved along `dim`, and 0 where none comes from."""
    low = tuple(by if d == dim else 0 for d in range(x.type.ndim))
    high = tuple(-count for count in low)
    return Pad(low, high, (0,) * x.type.ndim)(x, full((), 0, x.type.dtype, x.type.weak))


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The area under elements along `axis`, joined by straight lines: at places `x`, or `dx` apart.

    >>> jnp.trapezoid(jnp.array([1.0, 2.0, 3.0]), dx=2)
    Array(8., dtype=float32)
    """
    kind = type_of(y, "trapezoid")
    dim = dim_of("trapezoid", axis, kind.ndim)
    if x is None:
        return _area(y, dx, dim=dim, apart=True)
    place = type_of(x, "trapezoid")
    if place.ndim not in (1, kind.ndim):
        raise ValueError(f"trapezoid: places {place} are neither one row nor of the rank of {kind}")
    return _area(y, x, dim=dim, apart=False)


@composed
def _area(y: Any, x: Any, *, dim: int, apart: bool) -> Any:
    dtype, _ = meet("trapezoid", (type_of(y), type_of(x, "trapezoid")))
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    heights, gaps = (astype_weak(as_operand(z), dtype, False) for z in (y, x))
    size = heights.type.shape[dim]
    if not apart:
        row = gaps.type.ndim == 1
        gaps = _differences(gaps, n=1, dim=0 if row else dim)
        if row:
            gaps = Reshape(tuple(gaps.type.size if d == dim else 1 for d in range(heights.type.ndim)))(gaps)
    sides = [along(heights, dim, start, limit) for start, limit in ((min(1, size), size), (0, max(size - 1, 0)))]
    return multiply(along_axes.sum(multiply(gaps, add(*sides)), axis=dim), 0.5)


def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * math.pi) -> Any:
    """Angles along `axis` with whole turns added so that no step is longer than half a turn, or than `discont`.

    >>> jnp.unwrap(jnp.array([0, 1, 2, 3, 0, 1]), period=4)
    Array([0, 1, 2, 3, 4, 5], dtype=int32)
    """
    dim = dim_of("unwrap", axis, type_of(p, "unwrap").ndim)
    given = () if discont is None else (discont,)
    return _unwrapped(p, period, *given, dim=dim)


@composed
def _unwrapped(p: Any, period: Any, *discont: Any, dim: int) -> Any:
    x = as_operand(p, "unwrap")
    if x.type.dtype == np.bool_ or x.type.dtype.kind == "c":
        raise ValueError(f"unwrap: needs real numbers, not {x.type}")
    dtype, weak = meet("unwrap", (x.type, type_of(period, "unwrap")))
    x, turn = (astype_weak(as_operand(z), dtype, weak) for z in (x, period))
    turn = stretch(turn, ())
    whole = is_inexact(dtype)
    half = divide(turn, 2) if whole else turn // 2
    longest = astype_weak(as_operand(discont[0]), default_dtype("float*"), False) if discont else half
    steps = _differences(x, n=1, dim=dim)
    short = subtract(remainder(add(steps, half), turn), half)
    # Of a step of half a turn, the direction stays.
    edge = And()(Compare("EQ")(*numbers("unwrap", short, -half)), Compare("GT")(steps, like(steps, 0)))
    if not whole:
        even = Compare("EQ")(*numbers("unwrap", turn % 2, 0))
        edge = And()(edge, stretch(even, edge.type.shape))
    short = Select()(edge, stretch(half, short.type.shape), short)
    more = subtract(short, steps)
    small = Compare("LT")(*numbers("unwrap", absolute(steps), longest))
    more = Select()(small, like(more, 0), more)
    first = along(x, dim, 0, min(1, x.type.shape[dim]))
    rest = add(along(x, dim, min(1, x.type.shape[dim]), x.type.shape[dim]), Cumulative(dim, "sum")(more))
    return Concatenate(dim)(first, rest)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Values between those of a table: `fp` at the ascending places `xp`, joined by straight lines.

    `left` and `right`: what lies beyond the ends: a value, "extrapolate", or unless told the nearest of `fp`. With a
    `period`, places go around, and need not ascend.

    >>> jnp.interp(jnp.array([0.0, 1.5, 9.0]), jnp.array([1.0, 2.0, 3.0]), jnp.array([3.0, 2.0, 0.0]))
    Array([3. , 2.5, 0. ], dtype=float32)
    """
    kinds = [type_of(z, "interp") for z in (x, xp, fp)]
    if kinds[1].ndim != 1 or kinds[1].shape != kinds[2].shape or not kinds[1].size:
        raise ValueError(f"interp: xp and fp must be two rows of one size, not {kinds[1]} and {kinds[2]}")
    for name, end in (("left", left), ("right", right)):
        if isinstance(end, str) and end != "extrapolate":
            raise ValueError(f"interp: {name} is a value or 'extrapolate', not {end!r}")
    if period is not None and isinstance(period, PYTHON_SCALARS) and not period:
        raise ValueError("interp: period must not be 0")
    if period is not None:
        return _between(x, xp, fp, period, ends=("", ""), goes_around=True)
    ends = ["nearest" if end is None else end if isinstance(end, str) else "given" for end in (left, right)]
    given = [end for end, how in zip((left, right), ends, strict=True) if how == "given"]
    return _between(x, xp, fp, *given, ends=(ends[0], ends[1]), goes_around=False)


@composed
def _between(x: Any, xp: Any, fp: Any, *extra: Any, ends: tuple[str, str], goes_around: bool) -> Any:
    dtype, _ = meet("interp", (type_of(x), type_of(xp)))
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    if dtype.kind == "c":
        raise ValueError(f"interp: places must be real, not {type_of(x)} and {type_of(xp)}")
    at, places = (astype_weak(as_operand(z), dtype, False) for z in (x, xp))
    values = as_inexact(fp, "interp")
    value_dtype, _ = meet("interp", (at.type, values.type))
    values = astype_weak(values, value_dtype, False)
    if goes_around:
        period = absolute(astype_weak(as_operand(extra[0], "interp"), dtype, False))
        at, places, values = _around(at, places, values, period)
    size = places.type.size
    index = searchsorted(places, at, side="right")
    index = Clamp()(like(index, min(1, size - 1)), index, like(index, size - 1))
    before = Clamp()(like(index, 0), subtract(index, 1), like(index, size - 1))
    low, high = (row_at(values, place) for place in (before, index))
    start, limit = (row_at(places, place) for place in (before, index))
    gap = subtract(limit, start)
    is_none = Compare("LE")(absolute(gap), like(gap, float(np.spacing(np.finfo(dtype).eps))))
    share = divide(subtract(at, start), Select()(is_none, like(gap, 1), gap))
    found = add(low, multiply(share, subtract(high, low)))
    found = Select()(is_none, low, found)
    if goes_around:
        return found
    rest = iter(extra)
    for how, place, beyond in zip(ends, (0, size - 1), ("LT", "GT"), strict=True):
        if how == "extrapolate":
            continue
        last, nearest = (Reshape(())(along(row, 0, place, place + 1)) for row in (places, values))
        end = as_operand(next(rest), "interp") if how == "given" else nearest
        outside = Compare(beyond)(at, stretch(last, at.type.shape))
        found = Select()(outside, stretch(astype_weak(end, value_dtype, False), found.type.shape), found)
    return found


def _around(at: Any, places: Any, values: Any, period: Any) -> tuple[Any, Any, Any]:
    """Places within one period and in order, with the last before the first and the first after the last."""
    at, places = remainder(at, period), remainder(places, period)
    size = places.type.size
    places, order = Sort(0)(places, Iota((size,), 0, np.dtype(np.int32))())
    values = row_at(values, order)
    ends = [along(places, 0, size - 1, size), along(places, 0, 0, 1)]
    places = Concatenate(0)(subtract(ends[0], period), places, add(ends[1], period))
    values = Concatenate(0)(along(values, 0, size - 1, size), values, along(values, 0, 0, 1))
    return at, places, values
