"""pad, in all modes of numpy.

Modes other than "constant" and "empty" compute the padding from slices of the array and concatenate it, one dim after
the other. A sharded dim is not all-gathered: neighbouring devices exchange halos.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.arrays.arithmetic import around, floor_divide
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, broadcast_to_shape, compiled_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.arrays.reductions import amax, amin
from shardwise.compiler.arrays.reductions import mean as mean_along
from shardwise.compiler.dtypes import is_inexact, is_integer
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, slice_along
from shardwise.numpy.ordering import median
from shardwise.numpy.vectorized import apply_along_axis
from shardwise.typing import ArrayLike, NestedArrays

Sides = tuple[Any, Any]  # the values for the low and the high end of a dim
Counts = tuple[tuple[int, int], ...]  # the numbers of elements at the low and the high end of each dim

_MODE_KEYWORDS = {
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


def pad(array: ArrayLike, pad_width: Any, mode: str | Callable[..., Any] = "constant", **kwargs: Any) -> Array:
    """Pad an array at both ends of its dims.

    Modes, with their keywords:

    - "constant": `constant_values`, 0 by default, in the same forms as `pad_width`.
    - "empty": zeros.
    - "edge": the outermost element.
    - "reflect", "symmetric": the mirror image, without or with the outermost element. With `reflect_type="odd"` it is
      subtracted from twice the outermost element.
    - "wrap": the elements of the opposite end.
    - "linear_ramp": a linear ramp from the outermost element to `end_values`, 0 by default.
    - "maximum", "minimum", "mean", "median": that statistic of the nearest `stat_length` elements, or of all.

    Args:
        array: the array.
        pad_width: the numbers of elements to add before and after, for each dim, as numpy broadcasts them: `2`,
            `(1, 2)` or `((1, 2), (0, 3))`.
        mode: one of the modes above, or a function that is called as `mode(row, counts, dim, kwargs)` for each row of
            each dim, padded with zeros, and returns the new row.
        **kwargs: the keywords of the mode.

    Returns:
        The padded array, of the dtype of `array`.

    Raises:
        TypeError: if `array` is not an array or a number, or if `pad_width` does not hold integers.
        ValueError: if `pad_width` is negative or does not match the rank, if a keyword does not belong to the mode or
            has a wrong value, or if a dim without elements is padded from its elements.
        NotImplementedError: if `mode` is unknown.

    Example:
        >>> jnp.pad(jnp.array([1, 2, 3]), (1, 2), "reflect")
        Array([2, 1, 2, 3, 2, 1], dtype=int32)
    """
    array_type = type_of(array, "pad")
    counts = _pad_counts(pad_width, array_type)
    if callable(mode):
        return _pad_by_function(array, counts, mode, kwargs)
    if mode not in _MODE_KEYWORDS:
        raise NotImplementedError(f"pad: mode must be one of {', '.join(_MODE_KEYWORDS)}, or a function, not {mode!r}")
    if unexpected := sorted(set(kwargs) - set(_MODE_KEYWORDS[mode])):
        accepted = ", ".join(_MODE_KEYWORDS[mode]) or "no keywords"
        raise ValueError(f"pad: mode {mode!r} accepts {accepted}, not {', '.join(unexpected)}")
    if mode in ("constant", "empty"):
        return _pad_constant(array, kwargs.get("constant_values", 0), counts, array_type)
    if empty := [
        dim for dim, (size, count) in enumerate(zip(array_type.shape, counts, strict=True)) if any(count) and not size
    ]:
        raise ValueError(f"pad: dim {empty[0]} of {array_type} has no elements, which mode {mode!r} needs")
    if mode == "linear_ramp":
        ends = np.asarray(_per_side("end_values", kwargs.get("end_values", 0), array_type))
        return _pad_from_elements(array, *ends.flat, counts=counts, mode=mode)
    if mode in ("reflect", "symmetric"):
        reflect_type = kwargs.get("reflect_type", "even")
        if reflect_type not in ("even", "odd"):
            raise ValueError(f"pad: reflect_type must be 'even' or 'odd', not {reflect_type!r}")
        return _pad_from_elements(array, counts=counts, mode=mode, odd=reflect_type == "odd")
    lengths = _stat_lengths(kwargs.get("stat_length"), array_type)
    return _pad_from_elements(array, counts=counts, mode=mode, lengths=lengths)


def _per_side(name: str, values: NestedArrays, array_type: ArrayType) -> Any:
    """Broadcast the argument `name` to one value for the low and one for the high end of each dim."""
    table = np.asarray(values)
    try:
        return np.broadcast_to(table, (array_type.ndim, 2))
    except ValueError:
        raise ValueError(
            f"pad: {name} of shape {table.shape} does not broadcast to a low and a high value for each dim of "
            f"{array_type}"
        ) from None


def _pad_counts(pad_width: Any, array_type: ArrayType) -> Counts:
    widths = np.asarray(pad_width)
    if widths.dtype.kind not in "iu":
        raise TypeError(f"pad: pad_width must be integers, not {pad_width!r}")
    if widths.size and widths.min() < 0:
        raise ValueError(f"pad: pad_width cannot be negative: {pad_width!r}; use a slice to remove elements")
    return tuple((int(low), int(high)) for low, high in _per_side("pad_width", widths, array_type))


def _stat_lengths(stat_length: Any, array_type: ArrayType) -> Counts:
    """Return the number of elements at each end that a statistic is computed from."""
    if stat_length is None:
        return tuple((size, size) for size in array_type.shape)
    table = _per_side("stat_length", stat_length, array_type)
    if table.size and table.min() < 1:
        raise ValueError(f"pad: stat_length must be 1 or more, not {stat_length!r}")
    return tuple(
        (min(int(low), size), min(int(high), size)) for (low, high), size in zip(table, array_type.shape, strict=True)
    )


def _pad_constant(array: ArrayLike, values: Any, counts: Counts, array_type: ArrayType) -> Any:
    if np.ndim(values) == 0:
        return _pad_with_values(array, values, counts=counts)
    return _pad_with_values(array, *_per_side("constant_values", values, array_type).flat, counts=counts)


@compiled_function
def _pad_with_values(x: ArrayLike, *values: ArrayLike, counts: Counts) -> Any:
    """Pad with one value everywhere, or with a (low, high) pair of values per dim, flattened."""
    padded = as_operand(x, "pad")
    zeros = (0,) * padded.type.ndim
    if len(values) == 1:
        value = _padding_value(values[0], padded)
        return Pad(tuple(low for low, _ in counts), tuple(high for _, high in counts), zeros)(padded, value)
    for dim, (low, high) in enumerate(counts):
        for side, (before, after) in enumerate(((low, 0), (0, high))):
            lows, highs = ((*zeros[:dim], count, *zeros[dim + 1 :]) for count in (before, after))
            padded = Pad(lows, highs, zeros)(padded, _padding_value(values[2 * dim + side], padded))
    return padded


def _padding_value(value: ArrayLike, x: Array) -> Any:
    """Convert a padding value to the dtype of `x`."""
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return full((), value, x.type.dtype, x.type.weak)
    return astype_weak(as_operand(value, "pad"), x.type.dtype, x.type.weak)


@compiled_function
def _pad_from_elements(
    x: ArrayLike,
    *ends: ArrayLike,
    counts: Counts,
    mode: str,
    odd: bool = False,
    lengths: Counts = (),
) -> Any:
    """Pad in a mode that computes the padding from elements of the array."""
    padded = as_operand(x, "pad")
    for dim, (low, high) in enumerate(counts):
        if not low and not high:
            continue
        if mode in ("reflect", "symmetric"):
            padded = _reflect(padded, dim, (low, high), mode == "reflect", odd)
            continue
        if mode == "wrap":
            before, after = _wrap(padded, dim, low, high)
        elif mode == "edge":
            first, last = _edges(padded, dim)
            before, after = _repeat(first, dim, low), _repeat(last, dim, high)
        elif mode == "linear_ramp":
            before, after = _ramps(padded, dim, (low, high), ends[2 * dim : 2 * dim + 2])
        else:
            first, last = (_statistic(part, dim, mode) for part in _end_slices(padded, dim, lengths[dim]))
            before, after = _repeat(first, dim, low), _repeat(last, dim, high)
        padded = _concatenate(dim, [*before, padded, *after] if mode == "wrap" else [before, padded, after])
    return padded


def _concatenate(dim: int, parts: list[Any]) -> Any:
    """Concatenate parts, without the empty ones."""
    parts = [part for part in parts if part.type.shape[dim]]
    return Concatenate(dim)(*parts) if len(parts) > 1 else parts[0]


def _end_slices(x: Array, dim: int, lengths: tuple[int, int]) -> Sides:
    size = x.type.shape[dim]
    return slice_along(x, dim, 0, lengths[0]), slice_along(x, dim, size - lengths[1], size)


def _edges(x: Array, dim: int) -> Sides:
    return _end_slices(x, dim, (1, 1))


def _repeat(x: Array, dim: int, count: int) -> Any:
    """Repeat a dim of size 1 `count` times."""
    return broadcast_to_shape(x, (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :]))


def _reflect(x: Array, dim: int, counts: tuple[int, int], omit_edge: bool, odd: bool) -> Any:
    """Pad with mirror images. A padding that is wider than the array takes several reflections."""
    size = x.type.shape[dim]
    omitted = 1 if omit_edge and size > 1 else 0
    for side, count in enumerate(counts):
        target = x.type.shape[dim] + count
        while (current := x.type.shape[dim]) < target:
            length = min(target - current, size - omitted)
            start = current - omitted - length if side else omitted
            mirrored = Reverse((dim,))(slice_along(x, dim, start, start + length))
            if odd:
                edge = _repeat(_edges(x, dim)[side], dim, length)
                mirrored = 2 * edge - mirrored
            x = Concatenate(dim)(*((x, mirrored) if side else (mirrored, x)))
    return x


def _wrap(x: Array, dim: int, low: int, high: int) -> tuple[list[Any], list[Any]]:
    """Return the parts before and after the array of its periodic continuation."""
    size = x.type.shape[dim]
    before = [slice_along(x, dim, size - low % size, size), *[x] * (low // size)]
    return before, [*[x] * (high // size), slice_along(x, dim, 0, high % size)]


def _ramps(x: Array, dim: int, counts: tuple[int, int], ends: Sequence[ArrayLike]) -> Sides:
    """Return linear ramps from the values `ends` to the outermost elements, which are excluded."""
    ramps = []
    for side, (edge, count, end) in enumerate(zip(_edges(x, dim), counts, ends, strict=True)):
        shape = (*x.type.shape[:dim], count, *x.type.shape[dim + 1 :])
        start, stop = broadcast_to_shape(_padding_value(end, x), shape), broadcast_to_shape(edge, shape)
        if is_inexact(x.type.dtype):
            fraction = Iota(shape, dim, x.type.dtype)() * (1 / max(count, 1))
            ramp = start * (1 - fraction) + stop * fraction
        else:  # in exact integer arithmetic, rounded down
            start, stop = (astype_weak(y, default_dtype("int*"), False) for y in (start, stop))
            ramp = start + floor_divide((stop - start) * Iota(shape, dim, start.type.dtype)(), max(count, 1))
        ramp = astype_weak(ramp, x.type.dtype, x.type.weak)
        ramps.append(Reverse((dim,))(ramp) if side else ramp)
    return ramps[0], ramps[1]


def _statistic(x: Array, dim: int, mode: str) -> Any:
    """Compute the statistic `mode` along `dim`, in the dtype of `x`."""
    reductions: dict[str, Callable[..., Any]] = {
        "maximum": amax,
        "minimum": amin,
        "mean": mean_along,
        "median": median,
    }
    result = reductions[mode](x, axis=dim, keepdims=True)
    if result.type.dtype != x.type.dtype and is_integer(x.type.dtype):
        result = around(result)
    return astype_weak(result, x.type.dtype, x.type.weak)


def _pad_by_function(array: ArrayLike, counts: Counts, function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    x = _pad_constant(array, 0, counts, type_of(array, "pad"))
    for dim, count in enumerate(counts):

        def apply(row: Array, dim: int = dim, count: tuple[int, int] = count) -> Any:
            return function(row, count, dim, keywords)

        x = apply_along_axis(apply, dim, x)
    return x
