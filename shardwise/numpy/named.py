"""Axes that are names, in functions that reduce along axes: what `vmap`, `shard_map` and `xmap` bind.

`jnp.sum(x, axis=("batch", 0))` is the sum along dim 0, and then of these sums over all members along the name.
"""

import math
from typing import Any

from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.ir.types import carrier
from shardwise.compiler.ops import along_axes, numeric
from shardwise.compiler.ops.operands import as_inexact, astype_weak, static_axes
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


def check_alone(function: str, names: tuple[Any, ...], *options: Any) -> None:
    """Of the elements of all members, a function takes all: what some of them are to be is not said for each."""
    if any(option is not None for option in options):
        raise NotImplementedError(f"{function}: along names, as {names}, it takes no `where` and no `mean` yet")


def mean(a: Any, dims: tuple[int, ...], names: tuple[Any, ...], dtype: Any, keepdims: bool) -> Any:
    """The mean along dims and names: each member has as many elements."""
    return pmean(along_axes.mean(a, axis=dims, dtype=dtype, keepdims=keepdims), names)


def variance(a: Any, dims: tuple[int, ...], names: tuple[Any, ...], dtype: Any, fewer: float, keepdims: bool) -> Any:
    """The mean square distance from the mean along dims and names, shared by so many `fewer` than there are."""
    x = as_inexact(a, "var")
    wanted = x.type.dtype if dtype is None else canonical_dtype(dtype)
    wide = astype_weak(x, carrier(wanted), False)
    away = numeric.absolute(numeric.subtract(wide, mean(wide, dims, names, None, True)))
    total = psum(along_axes.sum(numeric.multiply(away, away), axis=dims, keepdims=keepdims), names)
    reduced = along_axes.reduced_dims("var", dims, x.type)
    count = axis_size(names) * math.prod([x.type.shape[dim] for dim in reduced])
    found = numeric.divide(total, max(count - fewer, 0))
    return found if wanted.kind == "c" else astype_weak(found, wanted, False)
