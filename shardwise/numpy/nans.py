"""Reductions that ignore NaN: nansum, nanmean, nanmax and the like. Integers contain no NaN."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays import reductions
from shardwise.compiler.arrays.arithmetic import as_bool
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    reject_out,
    static_axes,
    type_of,
)
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Not
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.numpy import reductions as np_reductions
from shardwise.numpy.elementwise import isnan, replace_nan
from shardwise.numpy.families import OUT_OF_BOUNDS, REDUCTION
from shardwise.numpy.ordering import MEDIAN, QUANTILE, quantile_along
from shardwise.numpy.statistics import variance
from shardwise.typing import ArrayLike, Axes, DTypeLike

_SUM = REDUCTION.extended(
    {"dtype": "the dtype of the result and of the computation."},
    "The reduced array.",
    ["TypeError: if the mask does not broadcast."],
)
_EXTREMUM = REDUCTION.extended(
    {"initial": "a value to compare with too. Required with a mask, or if there is no element."},
    "The reduced array; NaN where all elements are NaN and `initial` is None.",
    ["ValueError: if `initial` is None and there is no element or a mask is passed."],
)
_VARIANCE = _SUM.extended(
    {
        "ddof": "the number that is subtracted from the count of elements before the division.",
        "mean": "the mean to take distances from, of a shape that broadcasts with `a`. By default it is computed.",
    },
    raises=["ValueError: if `a` is complex and `dtype` is real."],
)
_SEARCH = REDUCTION.extended(
    {"axis": Parameter("the axis to search. None searches the flattened array.", OUT_OF_BOUNDS)},
    "The indices; -1 where all elements are NaN.",
    ["ValueError: if there is no element."],
)


@compiled_function
def _replace_if_all_nan(result: Array, a: ArrayLike, *, axis: Axes, keepdims: bool, value: float) -> Any:
    """Replace elements of a reduction's result by `value` where all elements of `a` along `axis` are NaN."""
    all_nan = reductions.alltrue(isnan(a), axis=axis, keepdims=keepdims)
    return Select()(all_nan, full_like(result, value), result)


def _nan_extremum(
    name: str, a: ArrayLike, axis: Axes, out: None, keepdims: bool, initial: ArrayLike | None, where: ArrayLike | None
) -> Any:
    """Compute `nanmax` or `nanmin`, as `name` says."""
    reject_out(name, out)
    a_type = type_of(a, name)
    reduce = np_reductions.max if name == "nanmax" else np_reductions.min
    identity = -np.inf if name == "nanmax" else np.inf
    result = reduce(replace_nan(a, value=identity), axis=axis, keepdims=keepdims, initial=initial, where=where)
    if not is_inexact(a_type.dtype) or initial is not None:
        return result
    return _replace_if_all_nan(result, a, axis=static_axes(axis), keepdims=keepdims, value=np.nan)


@documented(_EXTREMUM)
def nanmax(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the largest element along axes, ignoring NaN.

    Example:
        >>> jnp.nanmax(jnp.array([[1.0, jnp.nan], [3.0, 2.0]]), axis=1)
        Array([1., 3.], dtype=float32)
    """
    return _nan_extremum("nanmax", a, axis, out, keepdims, initial, where)


@documented(_EXTREMUM)
def nanmin(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the smallest element along axes, ignoring NaN.

    Example:
        >>> jnp.nanmin(jnp.array([[1.0, jnp.nan], [3.0, 2.0]]), axis=1)
        Array([1., 2.], dtype=float32)
    """
    return _nan_extremum("nanmin", a, axis, out, keepdims, initial, where)


@documented(_SUM)
def nansum(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Compute the sum of the elements along axes, with NaN counted as 0.

    Args:
        initial: a value that is added to the sums.

    Example:
        >>> jnp.nansum(jnp.array([1.0, jnp.nan, 2.0]))
        Array(3., dtype=float32)
    """
    return np_reductions.sum(replace_nan(a, value=0), axis, dtype, out, keepdims, initial, where)


@documented(_SUM)
def nanprod(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Compute the product of the elements along axes, with NaN counted as 1.

    Args:
        initial: a value that is multiplied with the products.

    Example:
        >>> jnp.nanprod(jnp.array([3.0, jnp.nan, 2.0]))
        Array(6., dtype=float32)
    """
    return np_reductions.prod(replace_nan(a, value=1), axis, dtype, out, keepdims, initial, where)


@documented(_SUM, returns="The means; NaN where all elements are NaN.")
def nanmean(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    where: ArrayLike | None = None,
) -> Array:
    """Compute the mean of the elements along axes, ignoring NaN.

    Example:
        >>> jnp.nanmean(jnp.array([1.0, jnp.nan, 2.0]))
        Array(1.5, dtype=float32)
    """
    mask = _not_nan(a) if where is None else _not_nan(a, where)
    return np_reductions.mean(a, axis, dtype, out, keepdims, where=mask)


@compiled_function
def _not_nan(a: ArrayLike, *where: ArrayLike) -> Any:
    """Return the mask of the elements that are not NaN, combined with the mask `where` if there is one."""
    mask = Not()(isnan(a))
    if not where:
        return mask
    shape = broadcast_shapes("nanmean", mask.type.shape, type_of(where[0], "nanmean").shape)
    return And()(broadcast_to_shape(mask, shape), broadcast_to_shape(as_bool(where[0], "nanmean"), shape))


@documented(_VARIANCE, returns="The variances; NaN where the count minus `ddof` is not positive.")
def nanvar(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """Compute the variance of the elements along axes, ignoring NaN.

    Example:
        >>> jnp.nanvar(jnp.array([1.0, jnp.nan, 3.0]))
        Array(1., dtype=float32)
    """
    return _nan_variance("nanvar", a, axis, dtype, out, ddof, keepdims, where, mean, False)


@documented(_VARIANCE, returns="The standard deviations; NaN where the count minus `ddof` is not positive.")
def nanstd(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """Compute the standard deviation of the elements along axes, ignoring NaN.

    Example:
        >>> jnp.nanstd(jnp.array([1.0, jnp.nan, 3.0]))
        Array(1., dtype=float32)
    """
    return _nan_variance("nanstd", a, axis, dtype, out, ddof, keepdims, where, mean, True)


def _nan_variance(
    name: str,
    a: ArrayLike,
    axis: Axes,
    dtype: DTypeLike | None,
    out: None,
    ddof: float,
    keepdims: bool,
    where: ArrayLike | None,
    mean: ArrayLike | None,
    is_root: bool,
) -> Any:
    """Compute `nanvar`, or `nanstd` if `is_root`."""
    reject_out(name, out)
    return variance(
        a,
        *(x for x in (where, mean) if x is not None),
        has=(where is not None, mean is not None),
        axis=static_axes(axis),
        dtype=requested_dtype(name, dtype),
        ddof=ddof,
        keepdims=keepdims,
        skips_nan=True,
        is_root=is_root,
    )


@documented(_SEARCH)
def nanargmax(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the index of the first largest element along an axis, ignoring NaN.

    Example:
        >>> jnp.nanargmax(jnp.array([1.0, jnp.nan, 3.0]))
        Array(2, dtype=int32)
    """
    return _nan_arg_extremum("nanargmax", a, axis, out, bool(keepdims))


@documented(_SEARCH)
def nanargmin(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the index of the first smallest element along an axis, ignoring NaN.

    Example:
        >>> jnp.nanargmin(jnp.array([5.0, jnp.nan, 3.0]))
        Array(2, dtype=int32)
    """
    return _nan_arg_extremum("nanargmin", a, axis, out, bool(keepdims))


def _nan_arg_extremum(name: str, a: ArrayLike, axis: int | None, out: None, keepdims: bool) -> Any:
    """Compute `nanargmax` or `nanargmin`, as `name` says."""
    reject_out(name, out)
    if isinstance(axis, Sequence):
        raise TypeError(f"{name}: axis must be one integer or None, not {axis!r}; flatten several axes with `reshape`")
    arg_reduce, identity = (reductions.argmax, -np.inf) if name == "nanargmax" else (reductions.argmin, np.inf)
    result = arg_reduce(replace_nan(a, value=identity), axis=axis, keepdims=keepdims)
    if not is_inexact(type_of(a).dtype):
        return result
    return _replace_if_all_nan(result, a, axis=axis, keepdims=keepdims, value=-1)


@documented(QUANTILE, returns="The quantiles, with the dims of `q` first; NaN where all elements are NaN.")
def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Compute quantiles of the elements along axes, ignoring NaN.

    Example:
        >>> jnp.nanquantile(jnp.array([1.0, jnp.nan, 3.0]), 0.5)
        Array(2., dtype=float32)
    """
    return quantile_along("nanquantile", a, q, axis, out, method, keepdims, weights, ignore_nan=True)


@documented(QUANTILE, returns="The percentiles, with the dims of `q` first; NaN where all elements are NaN.")
def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Compute percentiles of the elements along axes, ignoring NaN.

    Args:
        q: the percentages, between 0 and 100.

    Example:
        >>> jnp.nanpercentile(jnp.array([1.0, jnp.nan, 3.0]), 50)
        Array(2., dtype=float32)
    """
    return quantile_along("nanpercentile", a, q, axis, out, method, keepdims, weights, ignore_nan=True)


@documented(MEDIAN, returns="The medians; NaN where all elements are NaN.")
def nanmedian(
    a: ArrayLike, axis: Axes = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """Compute the median of the elements along axes, ignoring NaN.

    Example:
        >>> jnp.nanmedian(jnp.array([1.0, jnp.nan, 3.0, 5.0]))
        Array(3., dtype=float32)
    """
    return quantile_along("nanmedian", a, 0.5, axis, out, "linear", keepdims, None, ignore_nan=True)
