"""Right-skewed Gumbel distribution (of maxima) with mode `loc` and scale `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats.standardize import log1mexp, standardize

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the right-skewed Gumbel distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mode.
        scale: the scale.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.cdf(1.0):.4f}"
        '0.6922'
    """
    return jnp.exp(logcdf(x, loc, scale))


@compiled_function
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the right-skewed Gumbel distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mode.
        scale: the scale.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.logcdf(1.0):.4f}"
        '-0.3679'
    """
    z, _ = standardize("gumbel_r.logcdf", x, loc, scale)
    return -jnp.exp(-z)


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the right-skewed Gumbel distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the mode.
        scale: the scale.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.logpdf(1.0):.4f}"
        '-1.3679'
    """
    z, scale = standardize("gumbel_r.logpdf", x, loc, scale)
    return -(z + jnp.exp(-z)) - jnp.log(scale)


@compiled_function
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the right-skewed Gumbel distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mode.
        scale: the scale.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.logsf(1.0):.4f}"
        '-1.1783'
    """
    return log1mexp(-logcdf(x, loc, scale))


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the right-skewed Gumbel distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the mode.
        scale: the scale.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.pdf(1.0):.4f}"
        '0.2546'
    """
    return jnp.exp(logpdf(x, loc, scale))


@compiled_function
def ppf(p: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the right-skewed Gumbel distribution.

    Args:
        p: the cumulative probabilities, from 0 to 1.
        loc: the mode.
        scale: the scale.

    Returns:
        The value below which the probability is `p`; NaN where `p` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.ppf(0.5):.4f}"
        '0.3665'
    """
    p, loc, scale = promote_inexact("gumbel_r.ppf", p, loc, scale)
    return loc - scale * jnp.log(-jnp.log(p))


@compiled_function
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the right-skewed Gumbel distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mode.
        scale: the scale.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gumbel_r.sf(1.0):.4f}"
        '0.3078'
    """
    return -jnp.expm1(logcdf(x, loc, scale))


set_public_names(__name__, __all__)
