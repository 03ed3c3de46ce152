"""Poisson distribution with mean `mu`, shifted by `loc`."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special

__all__ = ["cdf", "entropy", "logpmf", "pmf"]

_SERIES_FROM = 50.0  # from this `mu` on, the entropy is an asymptotic series in 1 / mu instead of a sum
_TERMS = 150  # terms of the sum; for `mu` below _SERIES_FROM the remaining ones vanish
_SERIES = (1 / 12, 1 / 24, 19 / 360, 9 / 80, 863 / 2520)


@compiled_function
def cdf(k: Any, mu: Any, loc: Any = 0) -> Array:
    """Compute the cumulative distribution function of the Poisson distribution.

    Args:
        k: the points at which to evaluate the function.
        mu: the mean before the shift.
        loc: the shift of the distribution.

    Returns:
        The probability of a value at or below each `k`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.poisson.cdf(2, 3.0):.4f}"
        '0.4232'
    """
    k, mu, loc = promote_inexact("poisson.cdf", k, mu, loc)
    count = jnp.floor(k - loc)
    in_support = count >= 0
    return jnp.where(in_support, special.gammaincc(jnp.where(in_support, count, 0) + 1, mu), 0)


@compiled_function
def entropy(mu: Any, loc: Any = 0) -> Array:
    """Compute the entropy of the Poisson distribution in nats.

    The entropy is summed term by term for small `mu` and evaluated by an asymptotic series for large `mu`.

    Args:
        mu: the mean before the shift.
        loc: the shift of the distribution, which does not change the entropy.

    Returns:
        The entropy for each `mu`; NaN where `mu` is negative.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.poisson.entropy(3.0):.4f}"
        '1.9315'
    """
    mu, _ = promote_inexact("poisson.entropy", mu, loc)
    is_small = mu < _SERIES_FROM
    small, large = jnp.where(is_small, mu, 1), jnp.where(is_small, _SERIES_FROM, mu)
    counts = jnp.arange(_TERMS, dtype=mu.dtype).reshape(*(1,) * mu.ndim, _TERMS)
    log_mass = logpmf(counts, small[..., None])
    summed = -jnp.sum(jnp.where(log_mass == -np.inf, 0, jnp.exp(log_mass) * log_mass), axis=-1)
    series = jnp.zeros_like(mu)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) / large
    asymptotic = 0.5 * jnp.log(2 * math.pi * math.e * large) - series
    return jnp.where(mu >= 0, jnp.where(is_small, summed, asymptotic), np.nan)


@compiled_function
def logpmf(k: Any, mu: Any, loc: Any = 0) -> Array:
    """Compute the log probability mass function of the Poisson distribution.

    Args:
        k: the outcomes.
        mu: the mean before the shift.
        loc: the shift of the distribution.

    Returns:
        The log probability of each `k`; -inf where `k - loc` is negative or not an integer.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.poisson.logpmf(2, 3.0):.4f}"
        '-1.4959'
    """
    k, mu, loc = promote_inexact("poisson.logpmf", k, mu, loc)
    k = k - loc
    log_mass = special.xlogy(k, mu) - special.gammaln(k + 1) - mu
    return jnp.where((k < 0) | (k != jnp.floor(k)), -np.inf, log_mass)


@compiled_function
def pmf(k: Any, mu: Any, loc: Any = 0) -> Array:
    """Compute the probability mass function of the Poisson distribution.

    Args:
        k: the outcomes.
        mu: the mean before the shift.
        loc: the shift of the distribution.

    Returns:
        The probability of each `k`; 0 where `k - loc` is negative or not an integer.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.poisson.pmf(2, 3.0):.4f}"
        '0.2240'
    """
    return jnp.exp(logpmf(k, mu, loc))


set_public_names(__name__, __all__)
