"""Statistics of samples: the mode, ranks and the standard error of the mean.

The mode and the ranks sort the elements, so that equal elements form runs. A run starts where an element differs from
its predecessor; a cumulative maximum of the start positions gives each element the start of its run.
"""

import math
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, compiled_list_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.dtypes import is_inexact
from shardwise.typing import ArrayLike


class ModeResult(NamedTuple):
    """The most frequent elements and their counts."""

    mode: Array
    count: Array  # type: ignore[assignment]


def mode(a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """Return the most frequent element along an axis and its count.

    Of several equally frequent elements it is the smallest. All NaNs count as equal. The mode of an empty axis is NaN,
    with count 0, in the default float dtype, as in JAX.

    Args:
        a: the sample.
        axis: the axis to reduce; with None, the array is flattened.
        nan_policy: only "propagate" is supported.
        keepdims: whether the reduced axis is kept with size 1.

    Returns:
        A named tuple with the fields `mode` and `count`.

    Raises:
        NotImplementedError: if `nan_policy` is "omit".
        ValueError: if `nan_policy` is another value, or if `axis` is out of range.
        TypeError: if `a` is not an array or a number.

    Example:
        >>> jax.scipy.stats.mode(jnp.array([3, 1, 3, 2]))
        ModeResult(mode=Array(3, dtype=int32), count=Array(2, dtype=int32))
    """
    _check_nan_policy("mode", nan_policy)
    x, dim, keepdims_shape = _normalize_axis("mode", a, axis)
    if not x.shape[dim]:
        empty_mode = jnp.full(x.shape[:dim] + x.shape[dim + 1 :], np.nan)
        results: list[Any] = [empty_mode, jnp.zeros_like(empty_mode)]
    else:
        results = _mode(x, dim=dim)
    return ModeResult(*(jnp.reshape(result, keepdims_shape) if keepdims else result for result in results))


@compiled_list_function
def _mode(x: ArrayLike, *, dim: int) -> list[Any]:
    ordered = jnp.sort(x, axis=dim)
    positions, starts, _ = _runs(ordered, dim)
    lengths = positions - starts + 1
    longest = jnp.argmax(lengths, axis=dim, keepdims=True)
    most_frequent = jnp.take_along_axis(ordered, longest, axis=dim)
    return [jnp.squeeze(most_frequent, dim), jnp.max(lengths, axis=dim)]


def _runs(ordered: Array, dim: int) -> tuple[Any, Any, Any]:
    """Return each element's position along `dim`, the position where its run starts, and whether it is the start."""
    before = lax.slice_in_dim(ordered, 0, -1, axis=dim)
    after = lax.slice_in_dim(ordered, 1, None, axis=dim)
    differs = (before != after) & ~(jnp.isnan(before) & jnp.isnan(after))
    first = jnp.ones_like(lax.slice_in_dim(ordered, 0, 1, axis=dim), bool)
    is_start = jnp.concatenate([first, differs], axis=dim)
    positions = lax.broadcasted_iota(default_dtype("int*"), ordered.shape, dim)
    return positions, lax.cummax(jnp.where(is_start, positions, 0), axis=dim), is_start


def rankdata(a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Array:
    """Return the rank of each element among the elements along an axis, starting from 1.

    Args:
        a: the sample.
        method: the rank of tied elements: the "average", "min" or "max" of their ranks; "dense" is "min" without gaps
            after ties; "ordinal" gives tied elements distinct ranks in the order of their positions.
        axis: the axis to rank along; with None, the array is flattened.
        nan_policy: only "propagate" is supported: if a slice along `axis` contains a NaN, all its ranks are NaN.

    Returns:
        The ranks as floats, in the shape of `a`, or flattened if `axis` is None.

    Raises:
        NotImplementedError: if `nan_policy` is "omit".
        ValueError: if `method` or `nan_policy` is another value, or if `axis` is out of range.
        TypeError: if `a` is not an array or a number.

    Example:
        >>> jax.scipy.stats.rankdata(jnp.array([3, 1, 3, 2]))
        Array([3.5, 1. , 3.5, 2. ], dtype=float32)
    """
    _check_nan_policy("rankdata", nan_policy)
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ValueError(f"rankdata: method must be average, min, max, dense or ordinal, not {method!r}")
    x, dim, _ = _normalize_axis("rankdata", a, axis)
    return _ranks(x, dim=dim, method=method) if x.size else jnp.zeros(x.shape, default_dtype("float*"))


@compiled_function
def _ranks(x: Array, *, dim: int, method: str) -> Any:
    positions = lax.broadcasted_iota(np.dtype(np.int32), x.shape, dim)
    ordered, order = lax.sort((x, positions), dimension=dim, num_keys=1)
    positions, starts, is_start = _runs(ordered, dim)
    if method == "ordinal":
        ranks = positions + 1
    elif method == "dense":
        ranks = jnp.cumsum(is_start, axis=dim)
    else:
        last = lax.slice_in_dim(jnp.ones_like(is_start), 0, 1, axis=dim)
        is_end = jnp.concatenate([lax.slice_in_dim(is_start, 1, None, axis=dim), last], axis=dim)
        ends = lax.cummin(jnp.where(is_end, positions, x.shape[dim]), axis=dim, reverse=True)
        ranks = {"min": starts + 1, "max": ends + 1, "average": (starts + ends + 2) / 2}[method]
    _, ranks = lax.sort((order, ranks), dimension=dim, num_keys=1)  # back to the order of `x`
    ranks = ranks.astype(default_dtype("float*"))
    return jnp.where(jnp.any(jnp.isnan(x), axis=dim, keepdims=True), np.nan, ranks)


def sem(
    a: ArrayLike, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False
) -> Array:
    """Compute the standard error of the mean along an axis.

    Args:
        a: the sample.
        axis: the axis to reduce; with None, all axes are reduced.
        ddof: the delta degrees of freedom: the variance is divided by the number of elements minus `ddof`.
        nan_policy: "propagate" returns NaN where a slice contains NaN; "omit" ignores NaNs.
        keepdims: whether the reduced axes are kept with size 1.

    Returns:
        The standard deviation divided by the square root of the number of elements.

    Raises:
        ValueError: if `nan_policy` is another value, or if `axis` is out of range.
        TypeError: if `a` is not an array or a number.

    Example:
        >>> f"{jax.scipy.stats.sem(jnp.array([1.0, 2.0, 5.0])):.4f}"
        '1.2019'
    """
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(f"sem: nan_policy must be 'propagate' or 'omit', not {nan_policy!r}")
    return _sem(a, axis=axis, ddof=ddof, omit=nan_policy == "omit", keepdims=keepdims)


@compiled_function
def _sem(a: ArrayLike, *, axis: int | None, ddof: int, omit: bool, keepdims: bool) -> Any:
    x = as_operand(a, "sem")
    if omit and is_inexact(x.type.dtype):
        count = jnp.sum(~jnp.isnan(x), axis=axis, keepdims=keepdims)
        return jnp.nanstd(x, axis=axis, ddof=ddof, keepdims=keepdims) / jnp.sqrt(count.astype(x.dtype))
    size = x.size if axis is None else x.shape[canonical_axis("sem", axis, x.ndim)]
    return jnp.std(x, axis=axis, ddof=ddof, keepdims=keepdims) / math.sqrt(size)


def _check_nan_policy(name: str, nan_policy: str) -> None:
    if nan_policy == "omit":
        raise NotImplementedError(f"{name}: nan_policy='omit' is not supported; use 'propagate'")
    if nan_policy != "propagate":
        raise ValueError(f"{name}: nan_policy must be 'propagate', not {nan_policy!r}")


def _normalize_axis(name: str, a: ArrayLike, axis: int | None) -> tuple[Array, int, tuple[int, ...]]:
    """Return the array (flattened if `axis` is None), the non-negative axis, and the result shape with `keepdims`."""
    x = as_operand(a, name)
    x_type = type_of(x)
    if axis is None or not x_type.ndim:
        return jnp.reshape(x, -1), 0, (1,) * x_type.ndim
    dim = canonical_axis(name, axis, x_type.ndim)
    return x, dim, (*x_type.shape[:dim], 1, *x_type.shape[dim + 1 :])
