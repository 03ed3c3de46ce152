"""Reductions that leave out what is no number: sums over those elements alone. Integers are all numbers."""

from typing import Any

import numpy as np

from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops import along_axes
from shardwise.compiler.ops.bitwise import And, Not
from shardwise.compiler.ops.elementwise import Select, like
from shardwise.compiler.ops.numeric import truth
from shardwise.compiler.ops.operands import (
    as_operand,
    broadcast_shapes,
    composed,
    no_out,
    static_axes,
    stretch,
    type_of,
)
from shardwise.numpy import functions
from shardwise.numpy.elementwise import isnan
from shardwise.numpy.ordering import quantile_along
from shardwise.numpy.statistics import variance


@composed
def _without(a: Any, *, number: float) -> Any:
    """`a` with a number in place of NaN."""
    x = as_operand(a, "nan reduction")
    return Select()(isnan(x), like(x, number), x) if is_inexact(x.type.dtype) else x


@composed
def _unless_none(found: Any, a: Any, *, axis: Any, keepdims: bool, other: float) -> Any:
    """What was found, or `other` where all elements along `axis` are NaN."""
    none = along_axes.alltrue(isnan(a), axis=axis, keepdims=keepdims)
    return Select()(none, like(found, other), found)


def _extreme(name: str, a: Any, axis: Any, out: None, keepdims: bool, initial: Any, where: Any) -> Any:
    no_out(name, out)
    kind = type_of(a, name)
    reduce = functions.max if name == "nanmax" else functions.min
    worst = -np.inf if name == "nanmax" else np.inf
    found = reduce(_without(a, number=worst), axis=axis, keepdims=keepdims, initial=initial, where=where)
    if not is_inexact(kind.dtype) or initial is not None:
        return found
    return _unless_none(found, a, axis=static_axes(axis), keepdims=keepdims, other=np.nan)


def nanmax(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest number along `axis`; NaN where there is none.

    >>> jnp.nanmax(jnp.array([[1.0, jnp.nan], [3.0, 2.0]]), axis=1)
    Array([1., 3.], dtype=float32)
    """
    return _extreme("nanmax", a, axis, out, keepdims, initial, where)


def nanmin(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest number along `axis`; NaN where there is none.

    >>> jnp.nanmin(jnp.array([[1.0, jnp.nan], [3.0, 2.0]]), axis=1)
    Array([1., 2.], dtype=float32)
    """
    return _extreme("nanmin", a, axis, out, keepdims, initial, where)


def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The sum of the numbers along `axis`.

    >>> jnp.nansum(jnp.array([1.0, jnp.nan, 2.0]))
    Array(3., dtype=float32)
    """
    return functions.sum(_without(a, number=0), axis, dtype, out, keepdims, initial, where)


def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The product of the numbers along `axis`.

    >>> jnp.nanprod(jnp.array([3.0, jnp.nan, 2.0]))
    Array(6., dtype=float32)
    """
    return functions.prod(_without(a, number=1), axis, dtype, out, keepdims, initial, where)


def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, where: Any = None
) -> Any:
    """The mean of the numbers along `axis`; NaN where there is none.

    >>> jnp.nanmean(jnp.array([1.0, jnp.nan, 2.0]))
    Array(1.5, dtype=float32)
    """
    chosen = _numbers(a) if where is None else _numbers(a, where)
    return functions.mean(a, axis, dtype, out, keepdims, where=chosen)


@composed
def _numbers(a: Any, *where: Any) -> Any:
    """Which elements are numbers, and among those that `where` says."""
    found = Not()(isnan(a))
    if not where:
        return found
    shape = broadcast_shapes("nanmean", found.type.shape, type_of(where[0], "nanmean").shape)
    return And()(stretch(found, shape), stretch(truth(where[0], "nanmean"), shape))


def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Any:
    """The mean square distance from the mean along `axis`, of the numbers; shared by `ddof` fewer than there are.

    >>> jnp.nanvar(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    return _spread("nanvar", a, axis, dtype, out, ddof, keepdims, where, mean, False)


def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Any:
    """The square root of the variance along `axis`, of the numbers.

    >>> jnp.nanstd(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    return _spread("nanstd", a, axis, dtype, out, ddof, keepdims, where, mean, True)


def _spread(
    name: str,
    a: Any,
    axis: Any,
    dtype: Any,
    out: None,
    ddof: float,
    keepdims: bool,
    where: Any,
    mean: Any,
    is_root: bool,
) -> Any:
    no_out(name, out)
    return variance(
        a,
        *(x for x in (where, mean) if x is not None),
        has=(where is not None, mean is not None),
        axis=static_axes(axis),
        dtype=dtype,
        ddof=ddof,
        keepdims=keepdims,
        skips_nan=True,
        is_root=is_root,
    )


def nanargmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
    """Where along `axis` the first of the largest numbers is; -1 where there is none.

    >>> jnp.nanargmax(jnp.array([1.0, jnp.nan, 3.0]))
    Array(2, dtype=int32)
    """
    return _place("nanargmax", a, axis, out, bool(keepdims))


def nanargmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
    """Where along `axis` the first of the smallest numbers is; -1 where there is none.

    >>> jnp.nanargmin(jnp.array([5.0, jnp.nan, 3.0]))
    Array(2, dtype=int32)
    """
    return _place("nanargmin", a, axis, out, bool(keepdims))


def _place(name: str, a: Any, axis: int | None, out: None, keepdims: bool) -> Any:
    no_out(name, out)
    find, worst = (along_axes.argmax, -np.inf) if name == "nanargmax" else (along_axes.argmin, np.inf)
    found = find(_without(a, number=worst), axis=axis, keepdims=keepdims)
    if not is_inexact(type_of(a).dtype):
        return found
    return _unless_none(found, a, axis=axis, keepdims=keepdims, other=-1)


def nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """As `quantile`, of the numbers alone; NaN where there is none.

    >>> jnp.nanquantile(jnp.array([1.0, jnp.nan, 3.0]), 0.5)
    Array(2., dtype=float32)
    """
    return quantile_along("nanquantile", a, q, axis, out, method, keepdims, weights, skips_nan=True)


def nanpercentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """As `percentile`, of the numbers alone; NaN where there is none.

    >>> jnp.nanpercentile(jnp.array([1.0, jnp.nan, 3.0]), 50)
    Array(2., dtype=float32)
    """
    return quantile_along("nanpercentile", a, q, axis, out, method, keepdims, weights, skips_nan=True)


def nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """As `median`, of the numbers alone; NaN where there is none.

    >>> jnp.nanmedian(jnp.array([1.0, jnp.nan, 3.0, 5.0]))
    Array(3., dtype=float32)
    """
    return quantile_along("nanmedian", a, 0.5, axis, out, "linear", keepdims, None, skips_nan=True)
