"""Softmax, log-sum-exp and related functions along axes, and `standardize`."""

from functools import partial
from typing import Any, Literal, overload

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.transformations.custom import custom_jvp
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays import softmax as softmax_ops
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, compiled_function, static_axes, type_of
from shardwise.numpy.named_axes import split_axis_names
from shardwise.typing import ArrayLike, Axes, NamedAxes

_LOG_SUM = Family(
    {
        "x": "the input, an array.",
        "axis": "the axis or axes of the sum, as dims or as names of bound axes; None for all dims.",
    },
    raises=[
        "TypeError: if `x` is not an array or a number, or if the shapes of `x` and `where` do not broadcast.",
        "ValueError: if an axis does not exist in `x`.",
        "UnboundAxisError: if a named axis is not bound.",
    ],
)


@overload
def logsumexp(
    a: ArrayLike,
    axis: NamedAxes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
) -> Array: ...


@overload
def logsumexp(
    a: ArrayLike,
    axis: NamedAxes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any: ...


def logsumexp(
    a: ArrayLike,
    axis: NamedAxes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """Compute `log(sum(b · exp(a)))` without overflow.

    Args:
        a: the exponents, an array or a number.
        axis: the axis or axes to sum along, as dims or as names of bound axes; None for all dims.
        b: the factors of the exponentials; by default 1. Must broadcast to the shape of `a`.
        keepdims: whether the summed dims stay in the result with size 1.
        return_sign: whether to return the sign of the sum too. Without it, the result is NaN where the sum is negative.
        where: a boolean array that selects the elements of the sum; by default all.

    Returns:
        The log-sum-exp; with `return_sign`, a tuple of the logarithm of the sum's magnitude and the sum's sign.

    Raises:
        TypeError: if `a` is not an array or a number, or if the shapes of `a`, `b` and `where` do not broadcast.
        ValueError: if an axis does not exist in `a`.
        UnboundAxisError: if a named axis is not bound.

    Example:
        >>> jax.nn.logsumexp(jnp.array([1000.0, 1000.0]))
        Array(1000.693..., dtype=float32)
    """
    dims, names = split_axis_names(axis)
    if names:
        return _logsumexp_named(a, dims, names, b, keepdims, return_sign, where)
    return softmax_ops.logsumexp(a, dims, b, keepdims, return_sign, where)


def _logsumexp_named(
    a: ArrayLike,
    dims: Any,
    names: Any,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """Compute `logsumexp` along dims and named axes: locally along the dims, then across the named axes."""
    local, sign = softmax_ops.logsumexp(a, dims, b, keepdims, True, where)
    largest = lax.stop_gradient(lax.pmax(local, names))
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    total = lax.psum(sign * jnp.exp(local - shift), names)
    out = jnp.log(jnp.abs(total)) + shift
    if return_sign:
        return out, jnp.sign(total)
    return out if b is None else jnp.where(total < 0, jnp.nan, out)


@documented(_LOG_SUM, returns="The logarithm of the mean.")
def logmeanexp(x: ArrayLike, axis: NamedAxes = None, where: ArrayLike | None = None, keepdims: bool = False) -> Array:
    """Compute `log(mean(exp(x)))` without overflow.

    Args:
        x: the exponents, an array or a number.
        axis: the axis or axes to average along, as dims or as names of bound axes; None for all dims.
        where: a boolean array that selects the elements of the mean; by default all.
        keepdims: whether the reduced dims stay in the result with size 1.

    Example:
        >>> jax.nn.logmeanexp(jnp.array([1000.0, 1000.0]))
        Array(1000., dtype=float32)
    """
    total = logsumexp(x, axis, where=where, keepdims=keepdims)
    ones = jnp.ones(type_of(x).shape, total.dtype)
    return total - jnp.log(jnp.sum(ones, axis=axis, where=where, keepdims=keepdims))


@documented(_LOG_SUM)
def softmax(x: ArrayLike, axis: NamedAxes = -1, where: ArrayLike | None = None) -> Array:
    """Compute the softmax `exp(x) / sum(exp(x))` along an axis, without overflow.

    Args:
        where: a boolean array that selects the elements of the sum; the result is 0 for the others. By default all.

    Returns:
        An array with the shape of `x` whose selected elements sum to 1 along `axis`.

    Example:
        >>> jax.nn.softmax(jnp.array([0.0, 0.0, 1000.0]))
        Array([0., 0., 1.], dtype=float32)
    """
    dims, names = split_axis_names(axis)
    if names:
        return jnp.exp(log_softmax(x, axis, where))
    if where is None:
        return _softmax(as_inexact(x, "softmax"), dims)
    return _softmax_where(as_inexact(x, "softmax"), where, dims)


@partial(custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: Axes) -> Any:
    return softmax_ops.softmax(x, axis)


@_softmax.defjvp
def _softmax_jvp(axis: Axes, primals: Any, tangents: Any) -> Any:
    """Compute the tangent from the result alone, which is the only residual."""
    ((x,), (dx,)) = primals, tangents
    y = _softmax(x, axis)
    return y, y * (dx - (y * dx).sum(axis, keepdims=True))


@partial(custom_jvp, nondiff_argnums=(2,))
def _softmax_where(x: Array, where: ArrayLike, axis: Axes) -> Any:
    return softmax_ops.softmax(x, axis, where)


@_softmax_where.defjvp
def _softmax_where_jvp(axis: Axes, primals: Any, tangents: Any) -> Any:
    (x, where), (dx, _) = primals, tangents
    y = _softmax_where(x, where, axis)  # 0 where `where` is False
    return y, y * (dx - (y * dx).sum(axis, keepdims=True))


@documented(_LOG_SUM, returns="An array with the shape of `x`.")
def log_softmax(x: ArrayLike, axis: NamedAxes = -1, where: ArrayLike | None = None) -> Array:
    """Compute the logarithm of `softmax`, without underflow.

    Args:
        where: a boolean array that selects the elements of the sum; the result is -inf for the others. By default all.

    Example:
        >>> jax.nn.log_softmax(jnp.array([0.0, 1000.0]))
        Array([-1000.,     0.], dtype=float32)
    """
    dims, names = split_axis_names(axis)
    if not names:
        return softmax_ops.log_softmax(x, dims, where)
    out = as_inexact(x, "log_softmax") - _logsumexp_named(x, dims, names, keepdims=True, where=where)
    return out if where is None else jnp.where(where, out, -jnp.inf)


def standardize(
    x: ArrayLike,
    axis: NamedAxes = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
) -> Array:
    """Standardize an array along an axis: `(x - mean) / sqrt(variance + epsilon)`.

    Args:
        x: the input, an array.
        axis: the axis or axes along which the mean and the variance are computed.
        mean: the mean to subtract; by default that of `x` along `axis`.
        variance: the variance; by default that of `x` along `axis`.
        epsilon: a number that is added to the variance, so that the quotient is finite.
        where: a boolean array that selects the elements of the mean and the variance; by default all.
        algorithm: how the variance is computed: "fast" subtracts the squared mean from the mean of the squares,
            "stable" averages the squared deviations.

    Returns:
        An array with the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or if the shapes of the arrays do not broadcast.
        ValueError: if `algorithm` is neither "fast" nor "stable", or if an axis does not exist in `x`.

    Example:
        >>> jax.nn.standardize(jnp.array([1.0, 3.0]), epsilon=0.0)
        Array([-1.,  1.], dtype=float32)
    """
    if algorithm not in ("fast", "stable"):
        raise ValueError(f"standardize: algorithm must be 'fast' or 'stable', not {algorithm!r}")
    names = ("mean", "variance", "where")
    optional = {name: array for name, array in zip(names, (mean, variance, where), strict=True) if array is not None}
    return _standardize(
        x, epsilon, *optional.values(), names=tuple(optional), axis=static_axes(axis), algorithm=algorithm
    )


@compiled_function
def _standardize(
    x: ArrayLike, epsilon: ArrayLike, *arrays: ArrayLike, names: tuple[str, ...], axis: NamedAxes, algorithm: str
) -> Any:
    optional = dict(zip(names, arrays, strict=True))
    where, mean, variance = optional.get("where"), optional.get("mean"), optional.get("variance")
    if mean is None:
        mean = jnp.mean(x, axis, keepdims=True, where=where)
    if variance is None and algorithm == "stable":
        variance = jnp.mean(jnp.square(jnp.subtract(x, mean)), axis, keepdims=True, where=where)
    elif variance is None:
        # Rounding errors may make the difference negative.
        variance = jnp.clip(jnp.mean(jnp.square(x), axis, keepdims=True, where=where) - jnp.square(mean), 0)
    return jnp.subtract(x, mean) * lax.rsqrt(variance + epsilon)
