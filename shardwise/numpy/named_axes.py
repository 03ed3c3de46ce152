"""Reductions along named axes, which `vmap`, `shard_map` and `xmap` bind, and positional axes together.

`jnp.sum(x, axis=("batch", 0))` sums along dim 0 and then applies `psum` over the axis "batch".
"""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from shardwise.compiler.arrays import arithmetic, methods, reductions
from shardwise.compiler.arrays.operands import (
    as_inexact,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    static_axes,
    type_of,
)
from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.lax.collectives import axis_size, pmean, psum
from shardwise.typing import ArrayLike, NamedAxes


def split_axis_names(axis: NamedAxes) -> tuple[Any, tuple[Any, ...]]:
    """Split `axis` into positional axes, in the form that `along_axes` expects, and axis names."""
    axis = static_axes(axis)
    axes = axis if isinstance(axis, tuple) else (axis,)
    names = tuple([each for each in axes if isinstance(each, str) or _is_bound(each)])
    if not names:
        return axis, ()
    return tuple([each for each in axes if each not in names]), names


def _is_bound(axis: Hashable) -> bool:
    return axis is not None and not isinstance(axis, int) and axis in bound_axes()


def mean(
    a: ArrayLike,
    dims: tuple[int, ...],
    names: tuple[Any, ...],
    dtype: np.dtype[Any] | None,
    keepdims: bool,
    where: ArrayLike | None = None,
) -> Any:
    """Compute the mean along dims and axis names, optionally of the elements where the mask `where` is true.

    Without a mask, every index of a named axis has the same number of elements, so `pmean` of the local means is exact.
    """
    if where is None:
        return pmean(reductions.mean(a, axis=dims, dtype=dtype, keepdims=keepdims), names)
    local_mean = reductions.mean_where(a, where, axis=dims, dtype=dtype, keepdims=keepdims)
    count = _count(a, where, dims, keepdims)
    total = psum(arithmetic.multiply(methods.where(count > 0, local_mean, 0), count), names)
    return astype_weak(arithmetic.divide(total, psum(count, names)), local_mean.type.dtype, False)


def _count(a: ArrayLike, where: ArrayLike, dims: tuple[int, ...], keepdims: bool) -> Any:
    """Count the true elements of the mask along dims, at this index of the named axes."""
    shape = broadcast_shapes("mean", type_of(a).shape, type_of(where).shape)
    return reductions.sum(broadcast_to_shape(arithmetic.as_bool(where, "mean"), shape), axis=dims, keepdims=keepdims)


def variance(
    a: ArrayLike,
    dims: tuple[int, ...],
    names: tuple[Any, ...],
    dtype: np.dtype[Any] | None,
    ddof: float,
    keepdims: bool,
    where: ArrayLike | None = None,
    center: ArrayLike | None = None,
) -> Any:
    """Compute the variance along dims and axis names, optionally of the elements where the mask `where` is true.

    The sum of the squared distances from `center`, by default the mean, is divided by the count minus `ddof`.
    """
    x = as_inexact(a, "var")
    reductions.check_variance_dtype("var", x.type, dtype)
    out_dtype = x.type.dtype if dtype is None else dtype
    wide = astype_weak(x, numpy_carrier(out_dtype), False)
    center = mean(wide, dims, names, None, True, where) if center is None else center
    distance = arithmetic.absolute(arithmetic.subtract(wide, center))
    squares = arithmetic.multiply(distance, distance)
    masked = squares if where is None else methods.where(where, squares, 0)
    total = psum(reductions.sum(masked, axis=dims, keepdims=keepdims), names)
    if where is None:
        reduced = reductions.reduced_dims("var", dims, x.type)
        count: Any = axis_size(names) * math.prod([x.type.shape[dim] for dim in reduced])
        result = arithmetic.divide(total, max(count - ddof, 0))
    else:
        count = psum(_count(x, where, dims, keepdims), names)
        result = arithmetic.divide(total, arithmetic.maximum(count - ddof, 0))
    result = astype_weak(result, total.type.dtype, False)
    return result if dtype is None and out_dtype.kind == "c" else astype_weak(result, out_dtype, False)
