"""Negative binomial distribution: the number of failures before the `n`-th success, shifted by `loc`."""

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
def logpmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the log probability mass function of the negative binomial distribution.

    Args:
        k: the outcomes.
        n: the number of successes.
        p: the success probability of a trial.
        loc: the shift of the distribution.

    Returns:
        The log probability of each `k`; -inf where `k` is below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.nbinom.logpmf(2, 5, 0.3):.4f}"
        '-4.0252'
    """
    k, n, p, loc = promote_inexact("nbinom.logpmf", k, n, p, loc)
    in_support = k >= loc
    k = jnp.where(in_support, k - loc, 0)
    log_binomial = -jnp.log(n + k) - special.betaln(k + 1, n)
    return jnp.where(in_support, log_binomial + special.xlogy(n, p) + special.xlog1py(k, -p), -np.inf)


@compiled_function
def pmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the probability mass function of the negative binomial distribution.

    Args:
        k: the outcomes.
        n: the number of successes.
        p: the success probability of a trial.
        loc: the shift of the distribution.

    Returns:
        The probability of each `k`; 0 where `k` is below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.nbinom.pmf(2, 5, 0.3):.4f}"
        '0.0179'
    """
    return jnp.exp(logpmf(k, n, p, loc))


set_public_names(__name__, __all__)
