"""Logistic distribution with mean `loc` and scale `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special
from shardwise.scipy.stats.standardize import standardize

__all__ = ["cdf", "isf", "logpdf", "pdf", "ppf", "sf"]


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the logistic distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the scale.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.logistic.cdf(1.0):.4f}"
        '0.7311'
    """
    z, _ = standardize("logistic.cdf", x, loc, scale)
    return special.expit(z)


@compiled_function
def isf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the inverse survival function of the logistic distribution.

    Args:
        x: the tail probabilities, from 0 to 1.
        loc: the mean.
        scale: the scale.

    Returns:
        The value above which the probability is `x`; NaN where `x` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.logistic.isf(0.75):.4f}"
        '-1.0986'
    """
    q, loc, scale = promote_inexact("logistic.isf", x, loc, scale)
    return -special.logit(q) * scale + loc


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the logistic distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the mean.
        scale: the scale.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.logistic.logpdf(1.0):.4f}"
        '-1.6265'
    """
    z, scale = standardize("logistic.logpdf", x, loc, scale)
    distance = jnp.abs(z)
    return -distance - 2 * jnp.log1p(jnp.exp(-distance)) - jnp.log(scale)


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the logistic distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the mean.
        scale: the scale.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.logistic.pdf(1.0):.4f}"
        '0.1966'
    """
    return jnp.exp(logpdf(x, loc, scale))


@compiled_function
def ppf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the logistic distribution.

    Args:
        x: the cumulative probabilities, from 0 to 1.
        loc: the mean.
        scale: the scale.

    Returns:
        The value below which the probability is `x`; NaN where `x` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.logistic.ppf(0.75):.4f}"
        '1.0986'
    """
    q, loc, scale = promote_inexact("logistic.ppf", x, loc, scale)
    return special.logit(q) * scale + loc


@compiled_function
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the logistic distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the scale.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.logistic.sf(1.0):.4f}"
        '0.2689'
    """
    z, _ = standardize("logistic.sf", x, loc, scale)
    return special.expit(-z)


set_public_names(__name__, __all__)
