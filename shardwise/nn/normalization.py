"""Functions that weigh elements along an axis against each other: softmax and its kin, standardize."""

from functools import partial
from typing import Any

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.custom import custom_jvp
from shardwise.compiler.ops import softmax as shares
from shardwise.compiler.ops.operands import as_inexact, composed, static_axes, type_of
from shardwise.numpy.named import apart


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b · exp(a))) along `axis` (all dims where none is given), of the elements `where` says, without overflow.

    With `return_sign`, the logarithm of the magnitude of the sum, and its sign; without, NaN where it is negative.

    >>> jax.nn.logsumexp(jnp.array([1000.0, 1000.0]))
    Array(1000.693..., dtype=float32)
    """
    dims, names = apart(axis)
    if names:
        return _logsumexp_along(a, dims, names, b, keepdims, return_sign, where)
    return shares.logsumexp(a, dims, b, keepdims, return_sign, where)


def _logsumexp_along(
    a: Any, dims: Any, names: Any, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """The same along dims and the names of axes: of what each member finds along the dims, all take the sum."""
    mine, sign = shares.logsumexp(a, dims, b, keepdims, True, where)
    largest = lax.stop_gradient(lax.pmax(mine, names))
    finite = jnp.where(jnp.isfinite(largest), largest, 0)
    total = lax.psum(sign * jnp.exp(mine - finite), names)
    found = jnp.log(jnp.abs(total)) + finite
    if return_sign:
        return found, jnp.sign(total)
    return found if b is None else jnp.where(total < 0, jnp.nan, found)


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) along `axis` (all dims where none is given), of the elements `where` says, without overflow.

    >>> jax.nn.logmeanexp(jnp.array([1000.0, 1000.0]))
    Array(1000., dtype=float32)
    """
    total = logsumexp(x, axis, where=where, keepdims=keepdims)
    ones = jnp.ones(type_of(x).shape, total.dtype)
    return total - jnp.log(jnp.sum(ones, axis=axis, where=where, keepdims=keepdims))


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """exp(x) as shares of its sum along `axis`, of the elements `where` says; the others are 0.

    >>> jax.nn.softmax(jnp.array([0.0, 0.0, 1000.0]))
    Array([0., 0., 1.], dtype=float32)
    """
    dims, names = apart(axis)
    if names:
        return jnp.exp(log_softmax(x, axis, where))
    if where is None:
        return _softmax(as_inexact(x, "softmax"), dims)
    return _softmax_where(as_inexact(x, "softmax"), where, dims)


@partial(custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Any, axis: Any) -> Any:
    return shares.softmax(x, axis)


@_softmax.defjvp
def _softmax_jvp(axis: Any, primals: Any, tangents: Any) -> Any:
    """Of the result alone: nothing else is kept for it."""
    ((x,), (dx,)) = primals, tangents
    y = _softmax(x, axis)
    return y, y * (dx - (y * dx).sum(axis, keepdims=True))


@partial(custom_jvp, nondiff_argnums=(2,))
def _softmax_where(x: Any, where: Any, axis: Any) -> Any:
    return shares.softmax(x, axis, where)


@_softmax_where.defjvp
def _softmax_where_jvp(axis: Any, primals: Any, tangents: Any) -> Any:
    (x, where), (dx, _) = primals, tangents
    y = _softmax_where(x, where, axis)  # 0 where an element does not count
    return y, y * (dx - (y * dx).sum(axis, keepdims=True))


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """The logarithm of `softmax`, exact where that is small; -inf for elements that do not count.

    >>> jax.nn.log_softmax(jnp.array([0.0, 1000.0]))
    Array([-1000.,     0.], dtype=float32)
    """
    dims, names = apart(axis)
    if not names:
        return shares.log_softmax(x, dims, where)
    found = as_inexact(x, "log_softmax") - _logsumexp_along(x, dims, names, keepdims=True, where=where)
    return found if where is None else jnp.where(where, found, -jnp.inf)


def standardize(
    x: Any,
    axis: Any = -1,
    mean: Any = None,
    variance: Any = None,
    epsilon: Any = 1e-5,
    where: Any = None,
    *,
    algorithm: str = "fast",
) -> Any:
    """`x` minus its mean along `axis`, over the root of its variance and `epsilon`, both given or found.

    The variance is the mean of the squares less the square of the mean ("fast"), or the mean of squared distances
    ("stable"). Elements that `where` leaves out do not count in either.

    >>> jax.nn.standardize(jnp.array([1.0, 3.0]), epsilon=0.0)
    Array([-1.,  1.], dtype=float32)
    """
    if algorithm not in ("fast", "stable"):
        raise ValueError(f"standardize: algorithm is 'fast' or 'stable', not {algorithm!r}")
    names = ("mean", "variance", "where")
    given = {name: array for name, array in zip(names, (mean, variance, where), strict=True) if array is not None}
    return _standardized(x, epsilon, *given.values(), names=tuple(given), axis=static_axes(axis), algorithm=algorithm)


@composed
def _standardized(x: Any, epsilon: Any, *arrays: Any, names: tuple[str, ...], axis: Any, algorithm: str) -> Any:
    given = dict(zip(names, arrays, strict=True))
    where, mean, variance = given.get("where"), given.get("mean"), given.get("variance")
    if mean is None:
        mean = jnp.mean(x, axis, keepdims=True, where=where)
    if variance is None and algorithm == "stable":
        variance = jnp.mean(jnp.square(jnp.subtract(x, mean)), axis, keepdims=True, where=where)
    elif variance is None:
        # The difference of two roundings may be below 0.
        variance = jnp.clip(jnp.mean(jnp.square(x), axis, keepdims=True, where=where) - jnp.square(mean), 0)
    return jnp.subtract(x, mean) * lax.rsqrt(variance + epsilon)
