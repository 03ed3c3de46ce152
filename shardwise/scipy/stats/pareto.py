"""Pareto distribution with exponent `b` and support from `loc + scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats.standardize import in_unit_interval, log1mexp, standardize

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


def _log_clipped(z: Any) -> Any:
    """Return log(z), and 0 below the support, where z < 1."""
    return jnp.log(jnp.where(z < 1, 1, z))


@compiled_function
def cdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the Pareto distribution.

    Args:
        x: the points at which to evaluate the function.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.cdf(2.0, 1.5):.4f}"
        '0.6464'
    """
    return -jnp.expm1(logsf(x, b, loc, scale))


@compiled_function
def logcdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the Pareto distribution.

    Args:
        x: the points at which to evaluate the function.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.logcdf(2.0, 1.5):.4f}"
        '-0.4363'
    """
    z, _, b = standardize("pareto.logcdf", x, loc, scale, b)
    return jnp.where(z <= 1, -np.inf, log1mexp(jnp.where(z <= 1, 1, b * _log_clipped(z))))


@compiled_function
def logpdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the Pareto distribution.

    Args:
        x: the points at which to evaluate the log density.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The log density at each `x`; -inf below the support.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.logpdf(2.0, 1.5):.4f}"
        '-1.3274'
    """
    z, scale, b = standardize("pareto.logpdf", x, loc, scale, b)
    log_density = jnp.log(b) - (b + 1) * _log_clipped(z) - jnp.log(scale)
    return jnp.where(z < 1, -np.inf, log_density)


@compiled_function
def logsf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the Pareto distribution.

    Args:
        x: the points at which to evaluate the function.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.logsf(2.0, 1.5):.4f}"
        '-1.0397'
    """
    z, _, b = standardize("pareto.logsf", x, loc, scale, b)
    return -b * _log_clipped(z)


@compiled_function
def pdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the Pareto distribution.

    Args:
        x: the points at which to evaluate the density.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The density at each `x`; 0 below the support.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.pdf(2.0, 1.5):.4f}"
        '0.2652'
    """
    return jnp.exp(logpdf(x, b, loc, scale))


@compiled_function
def ppf(q: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the Pareto distribution.

    Args:
        q: the cumulative probabilities, from 0 to 1.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The value below which the probability is `q`; NaN where `q` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.ppf(0.5, 1.5):.4f}"
        '1.5874'
    """
    q, b, loc, scale = promote_inexact("pareto.ppf", q, b, loc, scale)
    return jnp.where(in_unit_interval(q), jnp.exp(-jnp.log1p(-q) / b), np.nan) * scale + loc


@compiled_function
def sf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the Pareto distribution.

    Args:
        x: the points at which to evaluate the function.
        b: the exponent of the tail.
        loc: the shift of the distribution.
        scale: the scale; the support begins at `loc + scale`.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.pareto.sf(2.0, 1.5):.4f}"
        '0.3536'
    """
    return jnp.exp(logsf(x, b, loc, scale))


set_public_names(__name__, __all__)
