"""Beta-binomial distribution: `n` trials whose success probability has the beta distribution with `a` and `b`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special

__all__ = ["logpmf", "pmf"]


@compiled_function
def logpmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Array:
    """Compute the log probability mass function of the beta-binomial distribution.

    Args:
        k: the outcomes.
        n: the number of trials.
        a, b: the shape parameters of the beta distribution of the success probability.
        loc: the shift of the distribution.

    Returns:
        The log probability of each `k`; -inf where `k - loc` is outside of 0 to `n`, NaN where a parameter is invalid.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.betabinom.logpmf(2, 5, 1.0, 2.0):.4f}"
        '-1.6582'
    """
    k, n, a, b, loc = promote_inexact("betabinom.logpmf", k, n, a, b, loc)
    in_support = (k >= loc) & (k <= loc + n)
    k = jnp.where(in_support, k - loc, 0)
    log_binomial = -jnp.log(n + 1) - special.betaln(k + 1, n - k + 1)
    log_mass = log_binomial + special.betaln(k + a, n - k + b) - special.betaln(a, b)
    log_mass = jnp.where(in_support, log_mass, -np.inf)
    return jnp.where((n >= 0) & (a > 0) & (b > 0), log_mass, np.nan)


@compiled_function
def pmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Array:
    """Compute the probability mass function of the beta-binomial distribution.

    Args:
        k: the outcomes.
        n: the number of trials.
        a, b: the shape parameters of the beta distribution of the success probability.
        loc: the shift of the distribution.

    Returns:
        The probability of each `k`; 0 where `k - loc` is outside of 0 to `n`, NaN where a parameter is invalid.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.betabinom.pmf(2, 5, 1.0, 2.0):.4f}"
        '0.1905'
    """
    return jnp.exp(logpmf(k, n, a, b, loc))


set_public_names(__name__, __all__)
