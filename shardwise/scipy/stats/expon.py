"""Exponential distribution with support from `loc` and mean `loc + scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats.standardize import in_unit_interval, log1mexp, standardize

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the exponential distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.cdf(1.0):.4f}"
        '0.6321'
    """
    z, _ = standardize("expon.cdf", x, loc, scale)
    return -jnp.expm1(jnp.where(z < 0, 0, -z))


@compiled_function
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the exponential distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.logcdf(1.0):.4f}"
        '-0.4587'
    """
    z, _ = standardize("expon.logcdf", x, loc, scale)
    return jnp.where(z <= 0, -np.inf, log1mexp(jnp.where(z <= 0, 1, z)))


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the exponential distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The log density at each `x`; -inf below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.logpdf(1.0):.4f}"
        '-1.0000'
    """
    z, scale = standardize("expon.logpdf", x, loc, scale)
    return jnp.where(z < 0, -np.inf, -z - jnp.log(scale))


@compiled_function
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the exponential distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.logsf(1.5):.4f}"
        '-1.5000'
    """
    z, _ = standardize("expon.logsf", x, loc, scale)
    return jnp.where(z < 0, 0, -z)


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the exponential distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The density at each `x`; 0 below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.pdf(1.0):.4f}"
        '0.3679'
    """
    return jnp.exp(logpdf(x, loc, scale))


@compiled_function
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the exponential distribution.

    Args:
        q: the cumulative probabilities, from 0 to 1.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The value below which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.ppf(0.5):.4f}"
        '0.6931'
    """
    q, loc, scale = promote_inexact("expon.ppf", q, loc, scale)
    return jnp.where(in_unit_interval(q), -jnp.log1p(-q), np.nan) * scale + loc


@compiled_function
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the exponential distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.expon.sf(1.0):.4f}"
        '0.3679'
    """
    return jnp.exp(logsf(x, loc, scale))


set_public_names(__name__, __all__)
