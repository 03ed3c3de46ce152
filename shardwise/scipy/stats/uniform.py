"""Uniform distribution on the interval from `loc` to `loc + scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats.standardize import in_unit_interval, standardize

__all__ = ["cdf", "logpdf", "pdf", "ppf"]


@compiled_function
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the uniform distribution.

    Args:
        x: the points at which to evaluate the function.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.uniform.cdf(0.25):.4f}"
        '0.2500'
    """
    z, _ = standardize("uniform.cdf", x, loc, scale)
    return jnp.clip(z, 0, 1)


@compiled_function
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the uniform distribution.

    Args:
        x: the points at which to evaluate the log density.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The log density at each `x`; -inf outside of the support.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.uniform.logpdf(1.0, 0.0, 2.0):.4f}"
        '-0.6931'
    """
    z, scale = standardize("uniform.logpdf", x, loc, scale)
    return jnp.where(in_unit_interval(z), -jnp.log(scale), jnp.where(jnp.isnan(z), np.nan, -np.inf))


@compiled_function
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the uniform distribution.

    Args:
        x: the points at which to evaluate the density.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The density at each `x`; 0 outside of the support.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.uniform.pdf(1.0, 0.0, 2.0):.4f}"
        '0.5000'
    """
    return jnp.exp(logpdf(x, loc, scale))


@compiled_function
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the uniform distribution.

    Args:
        q: the cumulative probabilities, from 0 to 1.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The value below which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.uniform.ppf(0.5, 1.0, 2.0):.4f}"
        '2.0000'
    """
    q, loc, scale = promote_inexact("uniform.ppf", q, loc, scale)
    return jnp.where(in_unit_interval(q), q, np.nan) * scale + loc


set_public_names(__name__, __all__)
