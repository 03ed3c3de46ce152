"""Axes that are names, in functions that reduce along axes: what `vmap`, `shard_map` and `xmap` bind.

`jnp.sum(x, axis=("batch", 0))` is the sum along dim 0, and then of these sums over all members along the name.
"""

import math
from typing import Any

from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.ir.types import carrier
from shardwise.compiler.ops import along_axes, methods, numeric
from shardwise.compiler.ops.operands import (
    as_inexact,
    astype_weak,
    broadcast_shapes,
    static_axes,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import canonical_dtype
from shardwise.lax.named import axis_size, pmean, psum


def apart(axis: Any) -> tuple[Any, tuple[Any, ...]]:
    """The dims among axes, as `along_axes` takes them, and the names."""
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    names = tuple([each for each in axes if isinstance(each, str) or _is_bound(each)])
    if not names:
        return static_axes(axis), ()
    return tuple([each for each in axes if each not in names]), names


def _is_bound(axis: Any) -> bool:
    return axis is not None and not isinstance(axis, int) and axis in bound_axes()


def mean(a: Any, dims: tuple[int, ...], names: tuple[Any, ...], dtype: Any, keepdims: bool, where: Any = None) -> Any:
    """The mean along dims and names: of all elements, of which each member has as many, or of those `where` says."""
    if where is None:
        return pmean(along_axes.mean(a, axis=dims, dtype=dtype, keepdims=keepdims), names)
    mine = along_axes.mean_where(a, where, axis=dims, dtype=dtype, keepdims=keepdims)
    count = _count(a, where, dims, keepdims)
    total = psum(numeric.multiply(methods.where(count > 0, mine, 0), count), names)
    return astype_weak(numeric.divide(total, psum(count, names)), mine.type.dtype, False)


def _count(a: Any, where: Any, dims: tuple[int, ...], keepdims: bool) -> Any:
    """How many elements along dims count, on this member."""
    shape = broadcast_shapes("mean", type_of(a).shape, type_of(where).shape)
    return along_axes.sum(stretch(numeric.truth(where, "mean"), shape), axis=dims, keepdims=keepdims)


def variance(
    a: Any,
    dims: tuple[int, ...],
    names: tuple[Any, ...],
    dtype: Any,
    fewer: float,
    keepdims: bool,
    where: Any = None,
    center: Any = None,
) -> Any:
    """The mean square distance from the mean (or `center`) along dims and names, of the elements `where` says, shared
    by so many `fewer` than there are."""
    x = as_inexact(a, "var")
    wanted = x.type.dtype if dtype is None else canonical_dtype(dtype)
    wide = astype_weak(x, carrier(wanted), False)
    center = mean(wide, dims, names, None, True, where) if center is None else center
    away = numeric.absolute(numeric.subtract(wide, center))
    squares = numeric.multiply(away, away)
    chosen = squares if where is None else methods.where(where, squares, 0)
    total = psum(along_axes.sum(chosen, axis=dims, keepdims=keepdims), names)
    if where is None:
        reduced = along_axes.reduced_dims("var", dims, x.type)
        count: Any = axis_size(names) * math.prod([x.type.shape[dim] for dim in reduced])
        found = numeric.divide(total, max(count - fewer, 0))
    else:
        count = psum(_count(x, where, dims, keepdims), names)
        found = numeric.divide(total, numeric.maximum(count - fewer, 0))
    found = astype_weak(found, total.type.dtype, False)
    return found if wanted.kind == "c" else astype_weak(found, wanted, False)
