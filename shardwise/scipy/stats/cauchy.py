"""Cauchy distribution with median `loc` and half width at half maximum `scale`."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats.standardize import in_unit_interval, standardize

__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


def _survival(z: Any) -> Any:
    """Survival function of the standard distribution, by `arctan2` to avoid cancellation in the upper tail."""
    return jnp.arctan2(jnp.ones_like(z), z) / math.pi


def _inverse_survival(q: Any) -> Any:
    """Inverse survival function of the standard distribution, computed from the shorter tail for accuracy."""
    tail = jnp.minimum(q, 1 - q)
    quantile = jnp.where(tail < 0.25, 1 / jnp.tan(math.pi * tail), jnp.tan(math.pi * (0.5 - tail)))
    return jnp.where(in_unit_interval(q), jnp.where(q > 0.5, -quantile, quantile), np.nan)


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the Cauchy distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.cdf(2.0):.4f}"
        '0.8524'
    """
    z, _ = standardize("cauchy.cdf", x, loc, scale)
    return _survival(-z)


@compiled_function
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the inverse survival function of the Cauchy distribution.

    Args:
        q: the tail probabilities, from 0 to 1.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The value above which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.isf(0.8):.4f}"
        '-1.3764'
    """
    q, loc, scale = promote_inexact("cauchy.isf", q, loc, scale)
    return loc + scale * _inverse_survival(q)


@compiled_function
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the Cauchy distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.logcdf(2.0):.4f}"
        '-0.1597'
    """
    return jnp.log(cdf(x, loc, scale))


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the Cauchy distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.logpdf(1.0):.4f}"
        '-1.8379'
    """
    z, scale = standardize("cauchy.logpdf", x, loc, scale)
    return -math.log(math.pi) - jnp.log1p(z * z) - jnp.log(scale)


@compiled_function
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the Cauchy distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.logsf(2.0):.4f}"
        '-1.9134'
    """
    return jnp.log(sf(x, loc, scale))


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the Cauchy distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.pdf(1.0):.4f}"
        '0.1592'
    """
    return jnp.exp(logpdf(x, loc, scale))


@compiled_function
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the Cauchy distribution.

    Args:
        q: the cumulative probabilities, from 0 to 1.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The value below which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.ppf(0.8):.4f}"
        '1.3764'
    """
    q, loc, scale = promote_inexact("cauchy.ppf", q, loc, scale)
    return loc - scale * _inverse_survival(q)


@compiled_function
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the Cauchy distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the median.
        scale: the half width at half maximum of the density.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.cauchy.sf(2.0):.4f}"
        '0.1476'
    """
    z, _ = standardize("cauchy.sf", x, loc, scale)
    return _survival(z)


set_public_names(__name__, __all__)
