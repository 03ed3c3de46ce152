"""Bernoulli distribution: 1 with probability `p`, 0 otherwise, shifted by `loc`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special
from shardwise.scipy.stats.standardize import in_unit_interval

__all__ = ["cdf", "logpmf", "pmf", "ppf"]


@compiled_function
def cdf(k: Any, p: Any) -> Array:
    """Compute the cumulative distribution function of the Bernoulli distribution.

    Args:
        k: the points at which to evaluate the function.
        p: the probability of the outcome 1.

    Returns:
        The probability of a value at or below each `k`; NaN where `p` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.bernoulli.cdf(0, 0.3):.4f}"
        '0.7000'
    """
    k, p = promote_inexact("bernoulli.cdf", k, p)
    probability = jnp.where(k < 0, 0, jnp.where(k < 1, 1 - p, 1))
    return jnp.where(jnp.isnan(k) | ~in_unit_interval(p), np.nan, probability)


@compiled_function
def logpmf(k: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the log probability mass function of the Bernoulli distribution.

    Args:
        k: the outcomes.
        p: the probability of the outcome 1.
        loc: the shift of the distribution.

    Returns:
        The log probability of each `k`; -inf where `k - loc` is outside of 0 to 1.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.bernoulli.logpmf(1, 0.3):.4f}"
        '-1.2040'
    """
    k, p, loc = promote_inexact("bernoulli.logpmf", k, p, loc)
    k = k - loc
    return jnp.where((k < 0) | (k > 1), -np.inf, special.xlogy(k, p) + special.xlog1py(1 - k, -p))


@compiled_function
def pmf(k: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the probability mass function of the Bernoulli distribution.

    Args:
        k: the outcomes.
        p: the probability of the outcome 1.
        loc: the shift of the distribution.

    Returns:
        The probability of each `k`; 0 where `k - loc` is outside of 0 to 1.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.bernoulli.pmf(1, 0.3):.4f}"
        '0.3000'
    """
    return jnp.exp(logpmf(k, p, loc))


@compiled_function
def ppf(q: Any, p: Any) -> Array:
    """Compute the quantile function (the inverse of `cdf`) of the Bernoulli distribution.

    Args:
        q: the cumulative probabilities, from 0 to 1.
        p: the probability of the outcome 1.

    Returns:
        The smallest outcome with a cumulative probability of at least `q`; NaN where `q` or `p` is not between 0 and 1.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.bernoulli.ppf(0.9, 0.3):.4f}"
        '1.0000'
    """
    q, p = promote_inexact("bernoulli.ppf", q, p)
    quantile = jnp.where(q <= 1 - p, jnp.zeros_like(q), 1)
    return jnp.where(in_unit_interval(q) & in_unit_interval(p), quantile, np.nan)


set_public_names(__name__, __all__)
