"""Normal distribution truncated to the interval from `loc + a * scale` to `loc + b * scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.scipy import special
from shardwise.scipy.stats import norm
from shardwise.scipy.stats.standardize import log1mexp, standardize

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


def _nan_unless_ordered(result: Any, a: Any, b: Any) -> Any:
    return jnp.where(a < b, result, np.nan)


def _standard_logcdf(z: Any, a: Any, b: Any) -> Any:
    """Log cumulative distribution function of the standard normal distribution truncated to `a` to `b`."""
    in_support = (z > a) & (z < b)
    log_probability = _log_mass(a, jnp.where(in_support, z, b)) - _log_mass(a, b)
    return _nan_unless_ordered(jnp.where(z <= a, -np.inf, jnp.where(z >= b, 0, log_probability)), a, b)


def _log_mass(low: Any, high: Any) -> Any:
    """Log probability of the standard normal distribution between `low` and `high`, from its smaller tails."""
    is_right = low > 0  # mirrored, so that the interval is in the left half or contains 0
    near, far = jnp.where(is_right, -low, high), jnp.where(is_right, -high, low)
    one_tail = near <= 0
    upper = special.log_ndtr(jnp.where(one_tail, near, 0))
    log_ratio = upper - special.log_ndtr(jnp.where(one_tail, far, -1))
    both_tails = jnp.where(one_tail, 0, special.ndtr(far) + special.ndtr(-near))
    return jnp.where(one_tail, upper + log1mexp(jnp.where(log_ratio > 0, log_ratio, 1)), jnp.log1p(-both_tails))


@compiled_function
def cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the truncated normal distribution.

    Args:
        x: the points at which to evaluate the function.
        a, b: the bounds of the support, in standard deviations from `loc`.
        loc: the mean before truncation.
        scale: the standard deviation before truncation.

    Returns:
        The probability of a value at or below each `x`; NaN unless `a < b`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.truncnorm.cdf(0.5, -1.0, 2.0):.4f}"
        '0.6509'
    """
    return jnp.exp(logcdf(x, a, b, loc, scale))


@compiled_function
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the truncated normal distribution.

    It is accurate in the tails, where `cdf` underflows.

    Args:
        x: the points at which to evaluate the function.
        a, b: the bounds of the support, in standard deviations from `loc`.
        loc: the mean before truncation.
        scale: the standard deviation before truncation.

    Returns:
        The log probability of a value at or below each `x`; NaN unless `a < b`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.truncnorm.logcdf(0.5, -1.0, 2.0):.4f}"
        '-0.4294'
    """
    z, _, a, b = standardize("truncnorm.logcdf", x, loc, scale, a, b)
    return _standard_logcdf(z, a, b)


@compiled_function
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the truncated normal distribution.

    Args:
        x: the points at which to evaluate the log density.
        a, b: the bounds of the support, in standard deviations from `loc`.
        loc: the mean before truncation.
        scale: the standard deviation before truncation.

    Returns:
        The log density at each `x`; -inf outside of the support, NaN unless `a < b`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.truncnorm.logpdf(0.5, -1.0, 2.0):.4f}"
        '-0.8438'
    """
    z, scale, a, b = standardize("truncnorm.logpdf", x, loc, scale, a, b)
    log_density = norm.logpdf(z) - _log_mass(a, b) - jnp.log(scale)
    return _nan_unless_ordered(jnp.where((z < a) | (z > b), -np.inf, log_density), a, b)


@compiled_function
def logsf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the truncated normal distribution.

    It is accurate in the tails, where `sf` underflows.

    Args:
        x: the points at which to evaluate the function.
        a, b: the bounds of the support, in standard deviations from `loc`.
        loc: the mean before truncation.
        scale: the standard deviation before truncation.

    Returns:
        The log probability of a value above each `x`; NaN unless `a < b`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.truncnorm.logsf(0.5, -1.0, 2.0):.4f}"
        '-1.0523'
    """
    z, _, a, b = standardize("truncnorm.logsf", x, loc, scale, a, b)
    return _standard_logcdf(-z, -b, -a)


@compiled_function
def pdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the truncated normal distribution.

    Args:
        x: the points at which to evaluate the density.
        a, b: the bounds of the support, in standard deviations from `loc`.
        loc: the mean before truncation.
        scale: the standard deviation before truncation.

    Returns:
        The density at each `x`; 0 outside of the support, NaN unless `a < b`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.truncnorm.pdf(0.5, -1.0, 2.0):.4f}"
        '0.4301'
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@compiled_function
def sf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the truncated normal distribution.

    Args:
        x: the points at which to evaluate the function.
        a, b: the bounds of the support, in standard deviations from `loc`.
        loc: the mean before truncation.
        scale: the standard deviation before truncation.

    Returns:
        The probability of a value above each `x`; NaN unless `a < b`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.truncnorm.sf(0.5, -1.0, 2.0):.4f}"
        '0.3491'
    """
    return jnp.exp(logsf(x, a, b, loc, scale))


set_public_names(__name__, __all__)
