"""What a sample says of itself: its most frequent element, the ranks of its elements, how sure its mean is.

Equal elements are next to each other once they are sorted: runs, which are found by comparing neighbours, and whose
ends are running extremes of places.
"""

import math
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import as_operand, composed, composed_list, type_of
from shardwise.compiler.ops.promote import default_dtype


class ModeResult(NamedTuple):
    """The most frequent elements, and how often each is there."""

    mode: Any
    count: Any


def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """The most frequent element along `axis` (of all, for None), of several the smallest, and how often it is there.

    NaN counts as an element that equals itself. Of no elements it is NaN.

    >>> jax.scipy.stats.mode(jnp.array([3, 1, 3, 2]))
    ModeResult(mode=Array(3, dtype=int32), count=Array(2, dtype=int32))
    """
    _propagated("mode", nan_policy)
    x, dim, shape = _along("mode", a, axis)
    if not x.shape[dim]:
        nothing = jnp.full(shape[:dim] + shape[dim + 1 :], np.nan)
        found: list[Any] = [nothing, jnp.zeros_like(nothing)]
    else:
        found = _mode(x, dim=dim)
    return ModeResult(*(jnp.reshape(part, shape) if keepdims else part for part in found))


@composed_list
def _mode(x: Any, *, dim: int) -> list[Any]:
    ordered = jnp.sort(x, axis=dim)
    places, starts, _ = _runs(ordered, dim)
    lengths = places - starts + 1
    longest = jnp.argmax(lengths, axis=dim, keepdims=True)
    found = jnp.take_along_axis(ordered, longest, axis=dim)
    return [jnp.squeeze(found, dim), jnp.max(lengths, axis=dim)]


def _runs(ordered: Any, dim: int) -> tuple[Any, Any, Any]:
    """Of every element its place along `dim`, where the run of its equals starts, and whether it is the start."""
    before = lax.slice_in_dim(ordered, 0, -1, axis=dim)
    after = lax.slice_in_dim(ordered, 1, None, axis=dim)
    differs = (before != after) & ~(jnp.isnan(before) & jnp.isnan(after))
    first = jnp.ones_like(lax.slice_in_dim(ordered, 0, 1, axis=dim), bool)
    is_start = jnp.concatenate([first, differs], axis=dim)
    places = lax.broadcasted_iota(default_dtype("int*"), ordered.shape, dim)
    return places, lax.cummax(jnp.where(is_start, places, 0), axis=dim), is_start


def rankdata(a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Any:
    """The rank of every element along `axis` (among all in a row, for None), from 1, as floats; NaN beside any NaN.

    `method` says what equals get: of their ranks the "average", "min" or "max"; "dense": the next rank follows at once;
    "ordinal": each one of its own.

    >>> jax.scipy.stats.rankdata(jnp.array([3, 1, 3, 2]))
    Array([3.5, 1. , 3.5, 2. ], dtype=float32)
    """
    _propagated("rankdata", nan_policy)
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ValueError(f"rankdata: method must be average, min, max, dense or ordinal, not {method!r}")
    x, dim, _ = _along("rankdata", a, axis)
    return _ranks(x, dim=dim, method=method) if x.size else jnp.zeros(x.shape, default_dtype("float*"))


@composed
def _ranks(x: Any, *, dim: int, method: str) -> Any:
    places = lax.broadcasted_iota(np.dtype(np.int32), x.shape, dim)
    ordered, order = lax.sort((x, places), dimension=dim, num_keys=1)
    places, starts, is_start = _runs(ordered, dim)
    if method == "ordinal":
        ranks = places + 1
    elif method == "dense":
        ranks = jnp.cumsum(is_start, axis=dim)
    else:
        last = lax.slice_in_dim(jnp.ones_like(is_start), 0, 1, axis=dim)
        is_end = jnp.concatenate([lax.slice_in_dim(is_start, 1, None, axis=dim), last], axis=dim)
        ends = lax.cummin(jnp.where(is_end, places, x.shape[dim]), axis=dim, reverse=True)
        ranks = {"min": starts + 1, "max": ends + 1, "average": (starts + ends + 2) / 2}[method]
    _, found = lax.sort((order, ranks), dimension=dim, num_keys=1)
    found = found.astype(default_dtype("float*"))
    return jnp.where(jnp.any(jnp.isnan(x), axis=dim, keepdims=True), np.nan, found)


def sem(a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Any:
    """The standard error of the mean along `axis` (of all, for None).

    `ddof`: by how much the number of elements is lowered in the variance. `nan_policy` "omit" leaves NaN out.

    >>> f"{jax.scipy.stats.sem(jnp.array([1.0, 2.0, 5.0])):.4f}"
    '1.2019'
    """
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(f"sem: nan_policy must be 'propagate' or 'omit', not {nan_policy!r}")
    return _sem(a, axis=axis, ddof=ddof, omit=nan_policy == "omit", keepdims=keepdims)


@composed
def _sem(a: Any, *, axis: int | None, ddof: int, omit: bool, keepdims: bool) -> Any:
    x = as_operand(a, "sem")
    if omit and is_inexact(x.type.dtype):
        count = jnp.sum(~jnp.isnan(x), axis=axis, keepdims=keepdims)
        return jnp.nanstd(x, axis=axis, ddof=ddof, keepdims=keepdims) / jnp.sqrt(count.astype(x.dtype))
    size = x.size if axis is None else x.shape[dim_of("sem", axis, x.ndim)]
    return jnp.std(x, axis=axis, ddof=ddof, keepdims=keepdims) / math.sqrt(size)


def _propagated(name: str, nan_policy: str) -> None:
    if nan_policy == "omit":
        raise NotImplementedError(f"{name}: NaN is not left out; nan_policy must be 'propagate'")
    if nan_policy != "propagate":
        raise ValueError(f"{name}: nan_policy must be 'propagate', not {nan_policy!r}")


def _along(name: str, a: Any, axis: int | None) -> tuple[Any, int, tuple[int, ...]]:
    """The array, the dim that is meant, and the shape of the result with that dim kept."""
    x = as_operand(a, name)
    kind = type_of(x)
    if axis is None or not kind.ndim:
        return jnp.reshape(x, -1), 0, (1,) * kind.ndim
    dim = dim_of(name, axis, kind.ndim)
    return x, dim, (*kind.shape[:dim], 1, *kind.shape[dim + 1 :])
