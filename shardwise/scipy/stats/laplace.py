"""Laplace (double exponential) distribution with mean `loc` and mean absolute deviation `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.scipy.stats.standardize import standardize

__all__ = ["cdf", "logpdf", "pdf"]


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the Laplace distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the mean.
        scale: the mean absolute deviation.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.laplace.cdf(1.0):.4f}"
        '0.8161'
    """
    z, _ = standardize("laplace.cdf", x, loc, scale)
    tail = 0.5 * jnp.exp(-jnp.abs(z))
    return jnp.where(z < 0, tail, 1 - tail)


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the Laplace distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the mean.
        scale: the mean absolute deviation.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.laplace.logpdf(1.0):.4f}"
        '-1.6931'
    """
    z, scale = standardize("laplace.logpdf", x, loc, scale)
    return -jnp.abs(z) - jnp.log(2 * scale)


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the Laplace distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the mean.
        scale: the mean absolute deviation.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.laplace.pdf(1.0):.4f}"
        '0.1839'
    """
    return jnp.exp(logpdf(x, loc, scale))


set_public_names(__name__, __all__)
