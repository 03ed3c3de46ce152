"""Gamma distribution with shape parameter `a`, scale `scale` and support from `loc`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.scipy import special
from shardwise.scipy.stats.standardize import standardize

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@compiled_function
def cdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the gamma distribution.

    Args:
        x: the points at which to evaluate the function.
        a: the shape parameter.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gamma.cdf(1.5, 2.0):.4f}"
        '0.4422'
    """
    z, _, a = standardize("gamma.cdf", x, loc, scale, a)
    return special.gammainc(a, jnp.maximum(z, 0))


@compiled_function
def logcdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the gamma distribution.

    Args:
        x: the points at which to evaluate the function.
        a: the shape parameter.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gamma.logcdf(1.5, 2.0):.4f}"
        '-0.8161'
    """
    return jnp.log(cdf(x, a, loc, scale))


@compiled_function
def logpdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the gamma distribution.

    Args:
        x: the points at which to evaluate the log density.
        a: the shape parameter.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The log density at each `x`; -inf below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gamma.logpdf(1.5, 2.0):.4f}"
        '-1.0945'
    """
    z, scale, a = standardize("gamma.logpdf", x, loc, scale, a)
    is_outside = z < 0
    z = jnp.where(is_outside, 1, z)
    log_density = special.xlogy(a - 1, z) - z - special.gammaln(a) - jnp.log(scale)
    return jnp.where(is_outside, -np.inf, log_density)


@compiled_function
def logsf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the gamma distribution.

    Args:
        x: the points at which to evaluate the function.
        a: the shape parameter.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gamma.logsf(1.5, 2.0):.4f}"
        '-0.5837'
    """
    return jnp.log(sf(x, a, loc, scale))


@compiled_function
def pdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the gamma distribution.

    Args:
        x: the points at which to evaluate the density.
        a: the shape parameter.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The density at each `x`; 0 below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gamma.pdf(1.5, 2.0):.4f}"
        '0.3347'
    """
    return jnp.exp(logpdf(x, a, loc, scale))


@compiled_function
def sf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the gamma distribution.

    Args:
        x: the points at which to evaluate the function.
        a: the shape parameter.
        loc: the lower end of the support.
        scale: the scale, the inverse of the rate.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gamma.sf(1.5, 2.0):.4f}"
        '0.5578'
    """
    z, _, a = standardize("gamma.sf", x, loc, scale, a)
    return special.gammaincc(a, jnp.maximum(z, 0))


set_public_names(__name__, __all__)
