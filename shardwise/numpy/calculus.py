"""Finite differences, numerical integration and interpolation of sampled values."""

import math
import operator
from typing import Any

import numpy as np

from shardwise.compiler.arrays import reductions
from shardwise.compiler.arrays.arithmetic import absolute, add, divide, multiply, promote_numeric, remainder, subtract
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    PYTHON_SCALARS,
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    static_axes,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, inexact_dtype, promote_dtypes
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Xor
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, slice_along
from shardwise.compiler.reduction import SUM
from shardwise.numpy.joining import concatenate
from shardwise.numpy.ordering import gather_1d, searchsorted
from shardwise.typing import ArrayLike, Axes


def diff(
    a: ArrayLike, n: int = 1, axis: int = -1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Array:
    """Return the n-th discrete difference along an axis.

    One difference subtracts from each element the one before it; `n` repeats this. Booleans are compared with XOR. If
    the array is sharded along `axis`, each difference exchanges one row with the neighbouring device.

    Args:
        a: the array, of rank 1 or more.
        n: how many times the difference is taken. 0 returns `a` unchanged.
        axis: the axis along which elements are subtracted.
        prepend, append: scalars or arrays to concatenate before and after `a` along `axis` first.

    Returns:
        An array with `n` fewer elements along `axis`, not counting `prepend` and `append`.

    Raises:
        ValueError: if `a` is a scalar, `n` is negative or `axis` is out of bounds.

    Example:
        >>> jnp.diff(jnp.array([1, 4, 9]), prepend=0)
        Array([1, 3, 5], dtype=int32)
    """
    a_type = type_of(a, "diff")
    if not a_type.ndim:
        raise ValueError(f"diff: needs an array of rank 1 or more, not {a_type}")
    if operator.index(n) < 0:
        raise ValueError(f"diff: n, the number of differences, must not be negative: {n}")
    dim = canonical_axis("diff", axis, a_type.ndim)
    if not n:
        return as_operand(a, "diff")
    slice_shape = (*a_type.shape[:dim], 1, *a_type.shape[dim + 1 :])
    parts = []
    for part in (prepend, a, append):
        if part is not None:
            is_scalar = not type_of(part, "diff").ndim
            parts.append(_broadcast_scalar(part, shape=slice_shape) if is_scalar else part)
    return _differences(concatenate(parts, dim) if len(parts) > 1 else a, n=operator.index(n), dim=dim)


@compiled_function
def _broadcast_scalar(x: ArrayLike, *, shape: tuple[int, ...]) -> Any:
    return broadcast_to_shape(as_operand(x), shape)


@compiled_function
def _differences(x: ArrayLike, *, n: int, dim: int) -> Any:
    differences = as_operand(x)
    for _ in range(n):
        size = differences.type.shape[dim]
        after = slice_along(differences, dim, min(1, size), size)
        before = slice_along(differences, dim, 0, max(size - 1, 0))
        differences = (Xor() if differences.type.dtype == np.bool_ else Sub())(after, before)
    return differences


def ediff1d(ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None) -> Array:
    """Return the differences between consecutive elements of the flattened array.

    Args:
        ary: the array of numbers; it is flattened.
        to_end: values to append to the differences, cast to the dtype of `ary`.
        to_begin: values to prepend to the differences, cast to the dtype of `ary`.

    Returns:
        A 1-D array: `to_begin`, the differences, `to_end`.

    Raises:
        ValueError: if `ary` is boolean.

    Example:
        >>> jnp.ediff1d(jnp.array([1, 4, 9]), to_end=0)
        Array([3, 5, 0], dtype=int32)
    """
    has_ends = to_begin is not None, to_end is not None
    return _ediff1d(ary, *(end for end in (to_begin, to_end) if end is not None), has_ends=has_ends)


@compiled_function
def _ediff1d(a: ArrayLike, *ends: ArrayLike, has_ends: tuple[bool, bool]) -> Any:
    x = as_operand(a, "ediff1d")
    if x.type.dtype == np.bool_:
        raise ValueError("ediff1d: booleans cannot be subtracted; convert them to integers")
    differences = _differences(Reshape((x.type.size,))(x), n=1, dim=0)
    rows = [astype_weak(as_operand(end, "ediff1d"), x.type.dtype, False) for end in ends]
    rows = [Reshape((row.type.size,))(row) for row in rows]
    parts = [*rows[: has_ends[0]], differences, *rows[has_ends[0] :]]
    return Concatenate(0)(*parts) if len(parts) > 1 else differences


def gradient(f: ArrayLike, *varargs: ArrayLike, axis: Axes = None, edge_order: int | None = None) -> Any:
    """Estimate the derivative of sampled values by finite differences.

    Interior elements use central differences, of second order also for samples that are not equally spaced. The first
    and the last element use one-sided differences.

    Args:
        f: the sampled values.
        *varargs: the spacing of the samples: nothing (spacing 1), one for all axes, or one per axis. Each is a scalar
            distance or a 1-D array with the coordinates along its axis.
        axis: the axis or axes along which to differentiate; all if None.
        edge_order: not supported, must be None.

    Returns:
        One array for a single axis, else a list with one array per axis.

    Raises:
        ValueError: if an axis has fewer than 2 elements, or if a spacing is neither a scalar nor a 1-D array of the
            size of its axis.
        TypeError: if the number of spacings is not 0, 1 or the number of axes.
        NotImplementedError: if `edge_order` is given.

    Example:
        >>> jnp.gradient(jnp.array([1.0, 4.0, 9.0, 16.0]))
        Array([3., 4., 6., 7.], dtype=float32)
    """
    if edge_order is not None:
        raise NotImplementedError("gradient: edge_order is not supported (edges use first differences); leave it out")
    f_type = type_of(f, "gradient")
    dims = reductions.reduced_dims("gradient", static_axes(axis), f_type)
    for dim in dims:
        if f_type.shape[dim] < 2:
            raise ValueError(f"gradient: dim {dim} of {f_type} has fewer than 2 elements")
    if len(varargs) not in (0, 1, len(dims)):
        raise TypeError(f"gradient: {len(varargs)} spacings for {len(dims)} axes; pass one, or one per axis")
    spacings = list(varargs) * (len(dims) if len(varargs) == 1 else 1)
    for dim, spacing in zip(dims, spacings, strict=False):
        spacing_type = type_of(spacing, "gradient")
        if spacing_type.ndim > 1 or (spacing_type.ndim and spacing_type.size != f_type.shape[dim]):
            raise ValueError(
                f"gradient: the spacing along dim {dim} of {f_type} must be a scalar or a 1-D array of size "
                f"{f_type.shape[dim]}, not {spacing_type}"
            )
    gradients = _gradients(f, *spacings, dims=dims)
    return gradients[0] if len(dims) == 1 else list(gradients)


@compiled_list_function
def _gradients(f: ArrayLike, *spacings: ArrayLike, dims: tuple[int, ...]) -> list[Any]:
    dtype, weak = promote_dtypes("gradient", [type_of(x, "gradient") for x in (f, *spacings)])
    dtype = inexact_dtype(dtype)
    x, *gaps = (astype_weak(as_operand(z, "gradient"), dtype, weak) for z in (f, *spacings))
    return [_gradient(x, dim, gap) for dim, gap in zip(dims, gaps or (1,) * len(dims), strict=True)]


def _gradient(x: Array, dim: int, spacing: Any) -> Any:
    size = x.type.shape[dim]
    index = Iota(x.type.shape, dim, np.dtype(np.int32))()
    is_first, is_last = (Compare("EQ")(index, full_like(index, place)) for place in (0, size - 1))
    forward = subtract(Select()(is_last, x, _shift(x, dim, -1)), x)
    backward = subtract(x, Select()(is_first, x, _shift(x, dim, 1)))
    if not type_of(spacing, "gradient").ndim:
        steps = where(Expr(is_first) | Expr(is_last), 1, Expr(x).full_like(2)).array
        return divide(divide(add(backward, forward), steps), spacing)
    gaps = _differences(spacing, n=1, dim=0)
    one = full((1,), 1, gaps.type.dtype, gaps.type.weak)
    row_shape = tuple(size if d == dim else 1 for d in range(x.type.ndim))
    gap_before, gap_after = (Reshape(row_shape)(Concatenate(0)(*parts)) for parts in ((one, gaps), (gaps, one)))
    backward, forward = divide(backward, gap_before), divide(forward, gap_after)
    # Second order for unequal gaps: each slope is weighted by the other slope's gap.
    interior = divide(add(multiply(backward, gap_after), multiply(forward, gap_before)), add(gap_before, gap_after))
    return Select()(is_first, forward, Select()(is_last, backward, interior))


def _shift(x: Array, dim: int, by: int) -> Any:
    """Shift elements along `dim` by `by` positions, filling with zeros."""
    low = tuple(by if d == dim else 0 for d in range(x.type.ndim))
    high = tuple(-count for count in low)
    return Pad(low, high, (0,) * x.type.ndim)(x, full((), 0, x.type.dtype, x.type.weak))


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> Array:
    """Integrate sampled values along an axis by the trapezoidal rule.

    Args:
        y: the sampled values.
        x: the coordinates of the samples: a 1-D array, or an array of the rank of `y`. If None, `dx` applies.
        dx: the distance between samples if `x` is None.
        axis: the axis to integrate along.

    Returns:
        The integrals, without the dim `axis`.

    Raises:
        ValueError: if `x` is neither 1-D nor of the rank of `y`, or if `axis` is out of bounds.

    Example:
        >>> jnp.trapezoid(jnp.array([1.0, 2.0, 3.0]), dx=2)
        Array(8., dtype=float32)
    """
    y_type = type_of(y, "trapezoid")
    dim = canonical_axis("trapezoid", axis, y_type.ndim)
    if x is None:
        return _trapezoid(y, dx, dim=dim, equally_spaced=True)
    x_type = type_of(x, "trapezoid")
    if x_type.ndim not in (1, y_type.ndim):
        raise ValueError(f"trapezoid: x must be 1-D or of the rank of y, {y_type}, not {x_type}")
    return _trapezoid(y, x, dim=dim, equally_spaced=False)


@compiled_function
def _trapezoid(y: ArrayLike, x: ArrayLike, *, dim: int, equally_spaced: bool) -> Any:
    """Integrate `y`; `x` is the spacing if `equally_spaced`, else the coordinates."""
    dtype, _ = promote_dtypes("trapezoid", (type_of(y), type_of(x, "trapezoid")))
    dtype = inexact_dtype(dtype)
    heights, gaps = (astype_weak(as_operand(z), dtype, False) for z in (y, x))
    size = heights.type.shape[dim]
    if not equally_spaced:
        is_row = gaps.type.ndim == 1
        gaps = _differences(gaps, n=1, dim=0 if is_row else dim)
        if is_row:
            gaps = Reshape(tuple(gaps.type.size if d == dim else 1 for d in range(heights.type.ndim)))(gaps)
    sides = [slice_along(heights, dim, start, limit) for start, limit in ((min(1, size), size), (0, max(size - 1, 0)))]
    return multiply(reductions.sum(multiply(gaps, add(*sides)), axis=dim), 0.5)


def unwrap(p: ArrayLike, discont: ArrayLike | None = None, axis: int = -1, period: ArrayLike = 2 * math.pi) -> Array:
    """Unwrap a periodic signal by adding multiples of the period.

    Steps between consecutive elements that exceed the threshold are replaced by their equivalents within half a
    period.

    Args:
        p: the signal, real.
        discont: the threshold for a step; half of `period` if None or smaller.
        axis: the axis along which the signal runs.
        period: the period.

    Returns:
        The unwrapped signal, in the shape of `p`.

    Raises:
        ValueError: if `p` is boolean or complex, or if `axis` is out of bounds.

    Example:
        >>> jnp.unwrap(jnp.array([0, 1, 2, 3, 0, 1]), period=4)
        Array([0, 1, 2, 3, 4, 5], dtype=int32)
    """
    dim = canonical_axis("unwrap", axis, type_of(p, "unwrap").ndim)
    threshold = () if discont is None else (discont,)
    return _unwrap(p, period, *threshold, dim=dim)


@compiled_function
def _unwrap(p: ArrayLike, period: ArrayLike, *discont: ArrayLike, dim: int) -> Any:
    x = as_operand(p, "unwrap")
    if x.type.dtype == np.bool_ or x.type.dtype.kind == "c":
        raise ValueError(f"unwrap: needs real numbers, not {x.type}")
    dtype, _ = promote_dtypes("unwrap", (x.type, type_of(period, "unwrap")))
    x, period = (astype_weak(as_operand(z), dtype, False) for z in (x, period))
    period = broadcast_to_shape(period, ())
    half = divide(period, 2) if is_inexact(dtype) else period // 2
    threshold = astype_weak(as_operand(discont[0]), default_dtype("float*"), False) if discont else half
    steps = _differences(x, n=1, dim=dim)
    wrapped = subtract(remainder(add(steps, half), period), half)
    # A positive step of half a period stays positive.
    is_half = And()(
        Compare("EQ")(*promote_numeric("unwrap", wrapped, -half)), Compare("GT")(steps, full_like(steps, 0))
    )
    if not is_inexact(dtype):
        is_even = Compare("EQ")(*promote_numeric("unwrap", period % 2, 0))
        is_half = And()(is_half, broadcast_to_shape(is_even, is_half.type.shape))
    wrapped = Select()(is_half, broadcast_to_shape(half, wrapped.type.shape), wrapped)
    correction = subtract(wrapped, steps)
    is_small = Compare("LT")(*promote_numeric("unwrap", absolute(steps), threshold))
    correction = Select()(is_small, full_like(correction, 0), correction)
    first = slice_along(x, dim, 0, min(1, x.type.shape[dim]))
    rest = add(slice_along(x, dim, min(1, x.type.shape[dim]), x.type.shape[dim]), Cumulative(dim, SUM)(correction))
    return Concatenate(dim)(first, rest)


def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | str | None = None,
    right: ArrayLike | str | None = None,
    period: ArrayLike | None = None,
) -> Array:
    """Interpolate linearly between tabulated values.

    Args:
        x: the points at which to interpolate.
        xp: the coordinates of the table, a 1-D array in ascending order (in any order with `period`).
        fp: the values of the table, real or complex, as many as `xp`.
        left: the result for points below `xp[0]`: a value, "extrapolate", or None for `fp[0]`.
        right: the result for points above `xp[-1]`: a value, "extrapolate", or None for `fp[-1]`.
        period: the period of the coordinates. With it, `left` and `right` do not apply.

    Returns:
        The interpolated values, in the shape of `x`.

    Raises:
        ValueError: if `xp` and `fp` are not 1-D arrays of the same size, at least 1; if `x` or `xp` is complex; if
            `left` or `right` is a string other than "extrapolate"; or if `period` is the number 0.

    Example:
        >>> jnp.interp(jnp.array([0.0, 1.5, 9.0]), jnp.array([1.0, 2.0, 3.0]), jnp.array([3.0, 2.0, 0.0]))
        Array([3. , 2.5, 0. ], dtype=float32)
    """
    _, xp_type, fp_type = (type_of(z, "interp") for z in (x, xp, fp))
    if xp_type.ndim != 1 or xp_type.shape != fp_type.shape or not xp_type.size:
        raise ValueError(
            f"interp: xp and fp must be 1-D arrays of the same size, at least 1, not {xp_type} and {fp_type}"
        )
    for name, end in (("left", left), ("right", right)):
        if isinstance(end, str) and end != "extrapolate":
            raise ValueError(f"interp: {name} must be a value or 'extrapolate', not {end!r}")
    if period is not None and isinstance(period, PYTHON_SCALARS) and not period:
        raise ValueError("interp: period must not be 0")
    if period is not None:
        return _interp(x, xp, fp, period, end_modes=("", ""), is_periodic=True)
    modes = ["nearest" if end is None else end if isinstance(end, str) else "value" for end in (left, right)]
    end_values = [end for end in (left, right) if end is not None and not isinstance(end, str)]
    return _interp(x, xp, fp, *end_values, end_modes=(modes[0], modes[1]), is_periodic=False)


@compiled_function
def _interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, *extra: ArrayLike, end_modes: tuple[str, str], is_periodic: bool
) -> Any:
    """Interpolate; `extra` is the period, or the values of the ends whose mode is "value"."""
    dtype, _ = promote_dtypes("interp", (type_of(x), type_of(xp)))
    dtype = inexact_dtype(dtype)
    if dtype.kind == "c":
        raise ValueError(f"interp: x and xp must be real, not {type_of(x)} and {type_of(xp)}")
    points, coordinates = (astype_weak(as_operand(z), dtype, False) for z in (x, xp))
    values = as_inexact(fp, "interp")
    value_dtype, _ = promote_dtypes("interp", (points.type, values.type))
    values = astype_weak(values, value_dtype, False)
    if is_periodic:
        period = absolute(astype_weak(as_operand(extra[0], "interp"), dtype, False))
        points, coordinates, values = _wrap_to_period(points, coordinates, values, period)
    size = coordinates.type.size
    index = searchsorted(coordinates, points, side="right")
    index = Clamp()(full_like(index, min(1, size - 1)), index, full_like(index, size - 1))
    before = Clamp()(full_like(index, 0), subtract(index, 1), full_like(index, size - 1))
    low, high = (gather_1d(values, place) for place in (before, index))
    start, limit = (gather_1d(coordinates, place) for place in (before, index))
    gap = subtract(limit, start)
    is_empty = Compare("LE")(absolute(gap), full_like(gap, float(np.spacing(np.finfo(dtype).eps))))
    weight = divide(subtract(points, start), Select()(is_empty, full_like(gap, 1), gap))
    result = add(low, multiply(weight, subtract(high, low)))
    result = Select()(is_empty, low, result)
    if is_periodic:
        return result
    end_values = iter(extra)
    for mode, place, beyond in zip(end_modes, (0, size - 1), ("LT", "GT"), strict=True):
        if mode == "extrapolate":
            continue
        last, nearest = (Reshape(())(slice_along(row, 0, place, place + 1)) for row in (coordinates, values))
        end = as_operand(next(end_values), "interp") if mode == "value" else nearest
        is_outside = Compare(beyond)(points, broadcast_to_shape(last, points.type.shape))
        result = Select()(
            is_outside, broadcast_to_shape(astype_weak(end, value_dtype, False), result.type.shape), result
        )
    return result


def _wrap_to_period(points: Array, coordinates: Array, values: Array, period: Array) -> tuple[Any, Any, Any]:
    """Wrap points and a table into one period; sort the table and extend it by one element at each end."""
    points, coordinates = remainder(points, period), remainder(coordinates, period)
    size = coordinates.type.size
    coordinates, order = Sort(0)(coordinates, Iota((size,), 0, np.dtype(np.int32))())
    values = gather_1d(values, order)
    last, first = slice_along(coordinates, 0, size - 1, size), slice_along(coordinates, 0, 0, 1)
    coordinates = Concatenate(0)(subtract(last, period), coordinates, add(first, period))
    values = Concatenate(0)(slice_along(values, 0, size - 1, size), values, slice_along(values, 0, 0, 1))
    return points, coordinates, values
