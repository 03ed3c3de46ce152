"""Statistics along axes: count_nonzero, ptp, average, cov, corrcoef and the variance behind `var` and `nanvar`.

All are sums along dims. On a mesh each device reduces its own shard, and only partial sums are all-reduced.
"""

from typing import Any, Literal, overload

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays import reductions
from shardwise.compiler.arrays.arithmetic import absolute, as_bool, conjugate, divide, imag, multiply, real, subtract
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    reject_out,
    static_axes,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, inexact_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.dtypes import is_inexact, numpy_carrier
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Complex
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.lax.collectives import psum
from shardwise.numpy.elementwise import isnan
from shardwise.numpy.families import REDUCTION
from shardwise.numpy.named_axes import split_axis_names
from shardwise.typing import ArrayLike, Axes, DTypeLike, NamedAxes


@documented(REDUCTION, returns="The counts, as integers.")
def count_nonzero(a: ArrayLike, axis: NamedAxes = None, keepdims: bool = False) -> Array:
    """Count the elements that differ from 0.

    Args:
        axis: the axis or axes to count along; names of mapped axes are accepted too. With None, all elements are
            counted.

    Example:
        >>> jnp.count_nonzero(jnp.array([[1, 0], [2, 3]]), axis=0)
        Array([2, 1], dtype=int32)
    """
    dims, names = split_axis_names(axis)
    count = _count_nonzero(a, axis=dims, keepdims=keepdims)
    return psum(count, names) if names else count


@compiled_function
def _count_nonzero(a: ArrayLike, *, axis: Axes, keepdims: bool) -> Any:
    return reductions.sum(as_bool(a, "count_nonzero"), axis=axis, dtype=default_dtype("int*"), keepdims=keepdims)


@documented(REDUCTION, returns="The differences, in the dtype of `a`.")
def ptp(a: ArrayLike, axis: Axes = None, out: None = None, keepdims: bool = False) -> Array:
    """Compute the difference between the largest and the smallest element.

    Raises:
        TypeError: if `a` is not an array or a number, or is boolean.
        ValueError: if an axis is out of bounds or repeats, or there are no elements along it.

    Example:
        >>> jnp.ptp(jnp.array([[1, 5], [7, 4]]), axis=1)
        Array([4, 3], dtype=int32)
    """
    reject_out("ptp", out)
    return _ptp(a, axis=static_axes(axis), keepdims=keepdims)


@compiled_function
def _ptp(a: ArrayLike, *, axis: Axes, keepdims: bool) -> Any:
    largest, smallest = (reduce(a, axis=axis, keepdims=keepdims) for reduce in (reductions.amax, reductions.amin))
    return subtract(largest, smallest)


@overload
def average(
    a: ArrayLike,
    axis: Axes = None,
    weights: ArrayLike | None = None,
    returned: Literal[False] = False,
    keepdims: bool = False,
) -> Array: ...


@overload
def average(
    a: ArrayLike, axis: Axes = None, weights: ArrayLike | None = None, returned: bool = False, keepdims: bool = False
) -> Any: ...


@documented(REDUCTION, returns="The mean, or a tuple of the mean and the sum of the weights.")
def average(
    a: ArrayLike, axis: Axes = None, weights: ArrayLike | None = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """Compute the weighted mean.

    Args:
        weights: the weight of each element: an array with the shape of `a`, or with the sizes of `a` along `axis`. By
            default all weights are 1.
        returned: whether to return the sum of the weights too.

    Raises:
        TypeError: if `a` or `weights` is not an array or a number.
        ValueError: if an axis does not exist, or the shape of `weights` does not match.

    Example:
        >>> jnp.average(jnp.array([1.0, 3.0]), weights=jnp.array([3, 1]))
        Array(1.5, dtype=float32)
    """
    axes = static_axes(axis)
    if weights is None:
        mean, total = _average(a, axis=axes, keepdims=keepdims)
    else:
        x, w = type_of(a, "average"), type_of(weights, "average")
        if x.shape != w.shape:
            if axis is None:
                raise ValueError(f"average: weights {w} do not have the shape of {x}; pass the `axis` they belong to")
            dims = reductions.reduced_dims("average", axes, x)
            if w.shape != tuple(x.shape[dim] for dim in dims):
                raise ValueError(f"average: weights {w} do not have the sizes of {x} along axis {axis}")
        mean, total = _average(a, weights, axis=axes, keepdims=keepdims)
    return (mean, total) if returned else mean


@compiled_list_function
def _average(a: ArrayLike, *weights: ArrayLike, axis: Axes, keepdims: bool) -> list[Any]:
    if not weights:
        mean = reductions.mean(a, axis=axis, keepdims=keepdims)
        count = type_of(a).size // max(1, mean.type.size)
        return [mean, full(mean.type.shape, count, mean.type.dtype)]
    x, w = as_operand(a, "average"), as_operand(weights[0], "average")
    dtype, _ = promote_dtypes("average", (x.type, w.type))
    dtype = inexact_dtype(dtype)
    x, w = (astype_weak(z, dtype, False) for z in (x, w))
    if x.type.shape != w.type.shape:
        dims = reductions.reduced_dims("average", axis, x.type)
        order = tuple(sorted(range(len(dims)), key=lambda position: dims[position]))
        sizes = tuple(size if dim in dims else 1 for dim, size in enumerate(x.type.shape))
        w = broadcast_to_shape(Reshape(sizes)(permute(w, order)), x.type.shape)
    total = reductions.sum(w, axis=axis, keepdims=keepdims)
    return [divide(reductions.sum(multiply(x, w), axis=axis, keepdims=keepdims), total), total]


def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Estimate the covariance matrix of variables from observations.

    Args:
        m: the observations of one variable (1 dim), or of several (2 dims).
        y: further variables with the same number of observations, appended to those of `m`.
        rowvar: whether each row is a variable. If False, each column is one.
        bias: whether to divide by the number of observations instead of by one less.
        ddof: the number that is subtracted from the number of observations in the divisor. It takes precedence over
            `bias`.
        fweights: the number of times that each observation occurs, as integers.
        aweights: the weight of each observation.
        dtype: the dtype to compute in. By default, the promoted dtype of `m` and `y`, at least the default float.

    Returns:
        The covariance matrix, or a scalar if there is only one variable.

    Raises:
        TypeError: if an argument is not an array or a scalar, `fweights` are not integers, or `m` and `y` differ in the
            number of observations.
        ValueError: if `m` or `y` has more than 2 dims, `ddof` is not an integer, or there is not one weight per
            observation.

    Example:
        >>> jnp.cov(jnp.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
        Array([[ 1., -1.],
               [-1.,  1.]], dtype=float32)
    """
    for x in (m, y):
        if x is not None and type_of(x, "cov").ndim > 2:
            raise ValueError(f"cov: observations must have 1 or 2 dims, not {type_of(x)}")
    if ddof is not None and int(ddof) != ddof:
        raise ValueError(f"cov: ddof must be an integer, not {ddof!r}")
    optional = [x for x in (y, fweights, aweights) if x is not None]
    return _covariance(
        m,
        *optional,
        has=(y is not None, fweights is not None, aweights is not None),
        by_row=bool(rowvar),
        ddof=(0 if bias else 1) if ddof is None else ddof,
        dtype=_inexact_dtype("cov", dtype),
    )


def _inexact_dtype(name: str, dtype: DTypeLike | None) -> Any:
    """Return the canonical dtype of a request for floats or complex numbers; None stays None."""
    requested = requested_dtype(name, dtype)
    if requested is not None and not is_inexact(requested):
        raise ValueError(f"{name}: dtype must be a floating or complex dtype, not {requested}")
    return requested


@compiled_function
def _covariance(
    m: ArrayLike, *optional: ArrayLike, has: tuple[bool, bool, bool], by_row: bool, ddof: int, dtype: np.dtype[Any]
) -> Any:
    """Compute the covariance matrix; `has` says which of y, fweights and aweights are in `optional`."""
    remaining = iter(optional)
    y, fweights, aweights = (next(remaining) if present else None for present in has)
    tables = [_variables_as_rows(x, by_row) for x in (m, y) if x is not None]
    common, _ = promote_dtypes("cov", [x.type for x in tables])
    compute_dtype = dtype if dtype is not None else inexact_dtype(common)
    tables = [astype_weak(x, compute_dtype, False) for x in tables]
    x = Concatenate(0)(*tables) if len(tables) > 1 else tables[0]
    count = x.type.shape[1]
    named_weights = (("fweights", fweights), ("aweights", aweights))
    factors = [_checked_weights(name, w, count) for name, w in named_weights if w is not None]
    if not factors:
        divisor = full((), count - ddof, compute_dtype)
        centered = subtract(x, reductions.mean(x, axis=1, keepdims=True))
        weighted = centered
    else:
        weights = factors[0] if len(factors) == 1 else multiply(*factors)
        weights = astype_weak(weights, compute_dtype, False)
        total = reductions.sum(weights)
        mean = divide(reductions.sum(multiply(x, weights), axis=1, keepdims=True), total)
        centered = subtract(x, mean)
        weighted = multiply(centered, weights)
        if ddof and aweights is not None:  # numpy scales ddof by the weighted mean of the aweights
            analytic = astype_weak(_checked_weights("aweights", aweights, count), compute_dtype, False)
            square = reductions.sum(multiply(weights, analytic))
            divisor = subtract(total, multiply(divide(square, total), ddof))
        else:
            divisor = subtract(total, ddof)
    is_degenerate = Compare("LE")(real(divisor), full_like(real(divisor), 0))
    divisor = Select()(is_degenerate, full_like(divisor, 0), divisor)
    products = Dot(((1,), (1,)))(weighted, conjugate(centered))
    covariance = divide(products, divisor)
    return Reshape(())(covariance) if covariance.type.shape == (1, 1) else covariance


def _variables_as_rows(x: ArrayLike, by_row: bool) -> Any:
    x = as_operand(x, "cov")
    if x.type.ndim < 2:
        return Reshape((1, x.type.size))(x)
    return x if by_row or x.type.shape[0] == 1 else permute(x, (1, 0))


def _checked_weights(name: str, weights: ArrayLike, count: int) -> Any:
    w = as_operand(weights, "cov")
    if w.type.shape != (count,):
        raise ValueError(f"cov: {name} must have one weight for each of {count} observations, not {w.type}")
    if name == "fweights" and is_inexact(w.type.dtype):
        raise TypeError(f"cov: fweights must be integers, not {w.type}")
    return w if name == "fweights" else absolute(w)


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: DTypeLike | None = None) -> Array:
    """Compute the matrix of Pearson correlation coefficients of variables.

    Args:
        x: the observations of one variable (1 dim), or of several (2 dims).
        y: further variables with the same number of observations, appended to those of `x`.
        rowvar: whether each row is a variable. If False, each column is one.
        dtype: the dtype to compute in. By default, the promoted dtype of `x` and `y`, at least the default float.

    Returns:
        The coefficients, from -1 to 1: a matrix, or a scalar if there is only one variable.

    Raises:
        TypeError: if an argument is not an array or a scalar, or `x` and `y` differ in the number of observations.
        ValueError: if `x` or `y` has more than 2 dims.

    Example:
        >>> jnp.corrcoef(jnp.array([1.0, 2.0, 3.0]), jnp.array([3.0, 2.0, 1.0]))
        Array([[ 1., -1.],
               [-1.,  1.]], dtype=float32)
    """
    for z in (x, y):
        if z is not None and type_of(z, "corrcoef").ndim > 2:
            raise ValueError(f"corrcoef: observations must have 1 or 2 dims, not {type_of(z)}")
    optional = [z for z in (y,) if z is not None]
    return _corrcoef(x, *optional, by_row=bool(rowvar), dtype=_inexact_dtype("corrcoef", dtype))


@compiled_function
def _corrcoef(x: ArrayLike, *optional: ArrayLike, by_row: bool, dtype: np.dtype[Any]) -> Any:
    result = _covariance(x, *optional, has=(bool(optional), False, False), by_row=by_row, ddof=1, dtype=dtype)
    if not result.type.ndim:
        return divide(result, result)
    size = result.type.shape[0]
    on_diagonal = Compare("EQ")(*(Iota((size, size), dim, np.dtype(np.int32))() for dim in (0, 1)))
    deviations = Sqrt()(reductions.sum(Select()(on_diagonal, real(result), full_like(real(result), 0)), axis=1))
    for shape in ((size, 1), (1, size)):
        result = divide(result, Reshape(shape)(deviations))
    if result.type.dtype.kind == "c":
        return Complex()(*(_clamp_to_unit(part(result)) for part in (real, imag)))
    return _clamp_to_unit(result)


def _clamp_to_unit(x: Array) -> Any:
    return Clamp()(full_like(x, -1), x, full_like(x, 1))


@compiled_function
def variance(
    a: ArrayLike,
    *optional: ArrayLike,
    has: tuple[bool, bool],
    axis: Axes,
    dtype: np.dtype[Any] | None,
    ddof: float,
    keepdims: bool,
    skips_nan: bool,
    is_root: bool,
) -> Any:
    """Compute the variance along `axis`, or the standard deviation with `is_root`.

    Elements where `where` is false are left out, and NaNs too with `skips_nan`. The result is NaN where the number of
    remaining elements does not exceed `ddof`. `has` says which of `where` and `mean` are in `optional`.
    """
    remaining = iter(optional)
    where, mean = (next(remaining) if present else None for present in has)
    x = as_inexact(a, "var")
    result_dtype = x.type.dtype if dtype is None else dtype
    reductions.check_variance_dtype("var", x.type, dtype)
    x = astype_weak(x, numpy_carrier(result_dtype), False)
    mask = full(x.type.shape, True, np.bool_)
    if where is not None:
        shape = broadcast_shapes("var", x.type.shape, type_of(where, "var").shape)
        x, mask = broadcast_to_shape(x, shape), broadcast_to_shape(as_bool(where, "var"), shape)
    if skips_nan:
        mask = And()(mask, Compare("EQ")(isnan(x), full(x.type.shape, False, np.bool_)))
    count = reductions.sum(mask, axis=axis, keepdims=True, dtype=default_dtype("float*"))
    if mean is None:
        total = reductions.sum(Select()(mask, x, full_like(x, 0)), axis=axis, keepdims=True)
        center = divide(total, count)
    else:
        center = astype_weak(as_operand(mean, "var"), x.type.dtype, False)
    centered = subtract(Select()(mask, x, full_like(x, 0)), center)
    squares = real(multiply(centered, conjugate(centered)))
    squares = Select()(mask, squares, full_like(squares, 0))
    result_count = reductions.sum(mask, axis=axis, keepdims=keepdims, dtype=squares.type.dtype)
    divisor = subtract(result_count, ddof)
    is_degenerate = Compare("LE")(divisor, full_like(divisor, 0))
    total = reductions.sum(squares, axis=axis, keepdims=keepdims)
    quotient = divide(total, Select()(is_degenerate, full_like(divisor, 1), divisor))
    result = Select()(is_degenerate, full_like(total, np.nan), quotient)
    result = Sqrt()(result) if is_root else result
    return astype_weak(result, result.type.dtype if dtype is None and result_dtype.kind == "c" else result_dtype, False)
