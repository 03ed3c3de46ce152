"""Binomial distribution: the number of successes in `n` trials with success probability `p`, shifted by `loc`."""

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
    """Compute the log probability mass function of the binomial distribution.

    Args:
        k: the outcomes.
        n: the number of trials.
        p: the success probability of a trial.
        loc: the shift of the distribution.

    Returns:
        The log probability of each `k`; -inf where `k - loc` is outside of 0 to `n`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.binom.logpmf(2, 5, 0.3):.4f}"
        '-1.1754'
    """
    k, n, p, loc = promote_inexact("binom.logpmf", k, n, p, loc)
    in_support = (k >= loc) & (k <= loc + n)
    k = jnp.where(in_support, k - loc, 0)
    log_binomial = -jnp.log(n + 1) - special.betaln(k + 1, n - k + 1)
    return jnp.where(in_support, log_binomial + special.xlogy(k, p) + special.xlog1py(n - k, -p), -np.inf)


@compiled_function
def pmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the probability mass function of the binomial distribution.

    Args:
        k: the outcomes.
        n: the number of trials.
        p: the success probability of a trial.
        loc: the shift of the distribution.

    Returns:
        The probability of each `k`; 0 where `k - loc` is outside of 0 to `n`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.binom.pmf(2, 5, 0.3):.4f}"
        '0.3087'
    """
    return jnp.exp(logpmf(k, n, p, loc))


set_public_names(__name__, __all__)
