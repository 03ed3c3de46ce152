"""Normal distribution with mean `loc` and standard deviation `scale`."""

import math
from typing import Any

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special
from shardwise.scipy.stats.standardize import standardize

__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the normal distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.cdf(1.0):.4f}"
        '0.8413'
    """
    z, _ = standardize("norm.cdf", x, loc, scale)
    return special.ndtr(z)


@compiled_function
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the inverse survival function of the normal distribution.

    Args:
        q: the tail probabilities, from 0 to 1.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The value above which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.isf(0.975):.4f}"
        '-1.9600'
    """
    q, loc, scale = promote_inexact("norm.isf", q, loc, scale)
    return -special.ndtri(q) * scale + loc


@compiled_function
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the normal distribution.

    It is accurate in the lower tail, where `cdf` underflows.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.logcdf(-20.0):.4f}"
        '-203.9172'
    """
    z, _ = standardize("norm.logcdf", x, loc, scale)
    return special.log_ndtr(z)


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the normal distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.logpdf(1.0):.4f}"
        '-1.4189'
    """
    z, scale = standardize("norm.logpdf", x, loc, scale)
    return -0.5 * (z * z + math.log(2 * math.pi)) - jnp.log(scale)


@compiled_function
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the normal distribution.

    It is accurate in the upper tail, where `sf` underflows.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.logsf(20.0):.4f}"
        '-203.9172'
    """
    z, _ = standardize("norm.logsf", x, loc, scale)
    return special.log_ndtr(-z)


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the normal distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.pdf(1.0):.4f}"
        '0.2420'
    """
    return jnp.exp(logpdf(x, loc, scale))


@compiled_function
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the normal distribution.

    Args:
        q: the cumulative probabilities, from 0 to 1.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The value below which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.ppf(0.975):.4f}"
        '1.9600'
    """
    q, loc, scale = promote_inexact("norm.ppf", q, loc, scale)
    return special.ndtri(q) * scale + loc


@compiled_function
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the normal distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the standard deviation.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.norm.sf(1.0):.4f}"
        '0.1587'
    """
    z, _ = standardize("norm.sf", x, loc, scale)
    return special.ndtr(-z)


set_public_names(__name__, __all__)
