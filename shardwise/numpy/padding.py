"""Arrays with more around them: constants, or what continues their ends.

All but constants are slices of the array, turned around or combined, joined to it along one dim after the other: a dim
that is cut is not gathered, its pieces trade their ends.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import ArrayType, is_inexact, is_integer
from shardwise.compiler.ops.along_axes import amax, amin
from shardwise.compiler.ops.along_axes import mean as mean_along
from shardwise.compiler.ops.elementwise import Mul, Sub, like
from shardwise.compiler.ops.numeric import around, floor_divide
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed, stretch, type_of
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.shape import Iota, full
from shardwise.compiler.ops.slicing import Concatenate, Pad, Reverse, along
from shardwise.numpy.ordering import median
from shardwise.numpy.vectorized import apply_along_axis

Sides = tuple[Any, Any]  # what is for the low and for the high end of a dim

_KEYWORDS = {
    "constant": ("constant_values",),
    "edge": (),
    "empty": (),
    "linear_ramp": ("end_values",),
    "maximum": ("stat_length",),
    "mean": ("stat_length",),
    "median": ("stat_length",),
    "minimum": ("stat_length",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
    "wrap": (),
}


def pad(array: Any, pad_width: Any, mode: str | Callable[..., Any] = "constant", **kwargs: Any) -> Any:
    """`array` with more elements around it, along one dim after the other.

    `pad_width`: how many before and after, for each dim, as numpy broadcasts it: `2`, `(1, 2)`, `((1, 2), (0, 3))`.
    `mode`: "constant" (`constant_values`, given in the same way), "edge" (the outermost element), "reflect" and
    "symmetric" (the elements turned around the outermost, or with it; `reflect_type` "odd": their distances from it
    turned too), "wrap" (those of the other end), "linear_ramp" (on the way to `end_values`), "maximum", "minimum",
    "mean", "median" (of the nearest `stat_length` elements, or of all), "empty" (zeros), or a function: it takes a row
    that was padded with zeros, the two counts, the dim and `kwargs`, and returns the row.

    >>> jnp.pad(jnp.array([1, 2, 3]), (1, 2), "reflect")
    Array([2, 1, 2, 3, 2, 1], dtype=int32)
    """
    kind = type_of(array, "pad")
    counts = _counts(pad_width, kind)
    if callable(mode):
        return _by_function(array, counts, mode, kwargs)
    if mode not in _KEYWORDS:
        raise NotImplementedError(f"pad: mode must be one of {', '.join(_KEYWORDS)}, or a function, not {mode!r}")
    if wrong := sorted(set(kwargs) - set(_KEYWORDS[mode])):
        takes = ", ".join(_KEYWORDS[mode]) or "no keywords"
        raise ValueError(f"pad: mode {mode!r} takes {takes}, not {', '.join(wrong)}")
    if mode in ("constant", "empty"):
        return _with_constants(array, kwargs.get("constant_values", 0), counts)
    if empty := [
        dim for dim, (size, count) in enumerate(zip(kind.shape, counts, strict=True)) if any(count) and not size
    ]:
        raise ValueError(f"pad: dim {empty[0]} of {kind} has no elements that mode {mode!r} could continue")
    if mode == "linear_ramp":
        ends = np.asarray(_each("end_values", kwargs.get("end_values", 0), kind))
        return _continued(array, *ends.flat, counts=counts, mode=mode)
    if mode in ("reflect", "symmetric"):
        turn = kwargs.get("reflect_type", "even")
        if turn not in ("even", "odd"):
            raise ValueError(f"pad: reflect_type must be 'even' or 'odd', not {turn!r}")
        return _continued(array, counts=counts, mode=mode, odd=turn == "odd")
    lengths = _lengths(kwargs.get("stat_length"), kind)
    return _continued(array, counts=counts, mode=mode, lengths=lengths)


def _each(name: str, values: Any, kind: ArrayType) -> Any:
    """Numbers for the low and the high end of each dim."""
    given = np.asarray(values)
    try:
        return np.broadcast_to(given, (kind.ndim, 2))
    except ValueError:
        raise ValueError(
            f"pad: {name} of shape {given.shape} does not give a low and a high count for each dim of {kind}"
        ) from None


def _counts(pad_width: Any, kind: ArrayType) -> tuple[tuple[int, int], ...]:
    widths = np.asarray(pad_width)
    if widths.dtype.kind not in "iu":
        raise TypeError(f"pad: pad_width must be integers, not {pad_width!r}")
    if widths.size and widths.min() < 0:
        raise ValueError(f"pad: pad_width cannot be negative: {pad_width!r}; take a slice instead")
    return tuple((int(low), int(high)) for low, high in _each("pad_width", widths, kind))


def _lengths(stat_length: Any, kind: ArrayType) -> tuple[tuple[int, int], ...]:
    """How many elements of each end count."""
    if stat_length is None:
        return tuple((size, size) for size in kind.shape)
    table = _each("stat_length", stat_length, kind)
    if table.size and table.min() < 1:
        raise ValueError(f"pad: stat_length must be 1 or more, not {stat_length!r}: of no elements there is nothing")
    return tuple(
        (min(int(low), size), min(int(high), size)) for (low, high), size in zip(table, kind.shape, strict=True)
    )


def _with_constants(array: Any, values: Any, counts: tuple[tuple[int, int], ...]) -> Any:
    if np.ndim(values) == 0:
        return _padded(array, values, counts=counts)
    return _padded(array, *np.broadcast_to(np.asarray(values), (len(counts), 2)).flat, counts=counts)


@composed
def _padded(x: Any, *values: Any, counts: tuple[tuple[int, int], ...]) -> Any:
    """Padded with one value everywhere, or with one for each side of each dim in turn."""
    x = as_operand(x, "pad")
    flat = (0,) * x.type.ndim
    if len(values) == 1:
        return Pad(tuple(low for low, _ in counts), tuple(high for _, high in counts), flat)(x, _scalar(values[0], x))
    for dim, (low, high) in enumerate(counts):
        for number, (before, after) in enumerate(((low, 0), (0, high))):
            lows, highs = ((*flat[:dim], count, *flat[dim + 1 :]) for count in (before, after))
            x = Pad(lows, highs, flat)(x, _scalar(values[2 * dim + number], x))
    return x


def _scalar(value: Any, x: Any) -> Any:
    """A padding value as elements of `x` are; a number is rounded as when it is converted."""
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return full((), value, x.type.dtype, x.type.weak)
    return astype_weak(as_operand(value, "pad"), x.type.dtype, x.type.weak)


@composed
def _continued(
    x: Any,
    *ends: Any,
    counts: tuple[tuple[int, int], ...],
    mode: str,
    odd: bool = False,
    lengths: tuple[tuple[int, int], ...] = (),
) -> Any:
    x = as_operand(x, "pad")
    for dim, (low, high) in enumerate(counts):
        if not low and not high:
            continue
        if mode in ("reflect", "symmetric"):
            x = _reflected(x, dim, (low, high), mode == "reflect", odd)
            continue
        if mode == "wrap":
            before, after = _wrapped(x, dim, low, high)
        elif mode == "edge":
            first, last = _edges(x, dim)
            before, after = _stretched(first, dim, low), _stretched(last, dim, high)
        elif mode == "linear_ramp":
            before, after = _ramps(x, dim, (low, high), ends[2 * dim : 2 * dim + 2])
        else:
            first, last = (_combined(part, dim, mode) for part in _outermost(x, dim, lengths[dim]))
            before, after = _stretched(first, dim, low), _stretched(last, dim, high)
        x = _joined(dim, [*before, x, *after] if mode == "wrap" else [before, x, after])
    return x


def _joined(dim: int, parts: list[Any]) -> Any:
    parts = [part for part in parts if part.type.shape[dim]]
    return Concatenate(dim)(*parts) if len(parts) > 1 else parts[0]


def _outermost(x: Any, dim: int, lengths: tuple[int, int]) -> Sides:
    size = x.type.shape[dim]
    return along(x, dim, 0, lengths[0]), along(x, dim, size - lengths[1], size)


def _edges(x: Any, dim: int) -> Sides:
    return _outermost(x, dim, (1, 1))


def _stretched(x: Any, dim: int, count: int) -> Any:
    """A dim of size 1 repeated `count` times."""
    return stretch(x, (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :]))


def _reflected(x: Any, dim: int, counts: tuple[int, int], around_edge: bool, odd: bool) -> Any:
    """Turned around either end, as often as it takes: each time about what is there then."""
    size = x.type.shape[dim]
    skipped = 1 if around_edge and size > 1 else 0
    for side, count in enumerate(counts):
        wanted = x.type.shape[dim] + count
        while (now := x.type.shape[dim]) < wanted:
            piece = min(wanted - now, size - skipped)
            start = now - skipped - piece if side else skipped
            turned = Reverse((dim,))(along(x, dim, start, start + piece))
            if odd:
                edge = _stretched(_edges(x, dim)[side], dim, piece)
                turned = Sub()(Mul()(like(edge, 2), edge), turned)
            x = Concatenate(dim)(*((x, turned) if side else (turned, x)))
    return x


def _wrapped(x: Any, dim: int, low: int, high: int) -> tuple[list[Any], list[Any]]:
    """What lies before and after where the array goes around."""
    size = x.type.shape[dim]
    before = [along(x, dim, size - low % size, size), *[x] * (low // size)]
    return before, [*[x] * (high // size), along(x, dim, 0, high % size)]


def _ramps(x: Any, dim: int, counts: tuple[int, int], ends: Any) -> Sides:
    """From numbers to the ends of the array, without those; both are counted from outside."""
    found = []
    for side, (edge, count, end) in enumerate(zip(_edges(x, dim), counts, ends, strict=True)):
        shape = (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :])
        start, stop = stretch(_scalar(end, x), shape), stretch(edge, shape)
        if is_inexact(x.type.dtype):
            step = Iota(shape, dim, x.type.dtype)() * (1 / max(count, 1))
            row = start * (1 - step) + stop * step
        else:  # exactly, and down to the next integer
            start, stop = (astype_weak(y, default_dtype("int*"), False) for y in (start, stop))
            row = start + floor_divide((stop - start) * Iota(shape, dim, start.type.dtype)(), max(count, 1))
        row = astype_weak(row, x.type.dtype, x.type.weak)
        found.append(Reverse((dim,))(row) if side else row)
    return found[0], found[1]


def _combined(x: Any, dim: int, mode: str) -> Any:
    combine: dict[str, Callable[..., Any]] = {"maximum": amax, "minimum": amin, "mean": mean_along, "median": median}
    found = combine[mode](x, axis=dim, keepdims=True)
    if found.type.dtype != x.type.dtype and is_integer(x.type.dtype):
        found = around(found)
    return astype_weak(found, x.type.dtype, x.type.weak)


def _by_function(array: Any, counts: tuple[tuple[int, int], ...], function: Any, keywords: dict[str, Any]) -> Any:
    x = _with_constants(array, 0, counts)
    for dim, count in enumerate(counts):

        def on_row(row: Any, dim: int = dim, count: tuple[int, int] = count) -> Any:
            return function(row, count, dim, keywords)

        x = apply_along_axis(on_row, dim, x)
    return x
