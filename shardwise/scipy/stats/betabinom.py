"""How many of `n` trials succeed, with one chance for all that has the beta distribution of `a` and `b`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["logpmf", "pmf"]


@composed
def logpmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Any:
    """The logarithm of the chance of `k`.

    >>> f"{jax.scipy.stats.betabinom.logpmf(2, 5, 1.0, 2.0):.4f}"
    '-1.6582'
    """
    k, n, a, b, loc = floats("betabinom.logpmf", k, n, a, b, loc)
    inside = (k >= loc) & (k <= loc + n)
    k = jnp.where(inside, k - loc, 0)
    ways = -jnp.log(n + 1) - special.betaln(k + 1, n - k + 1)
    found = jnp.where(inside, ways + special.betaln(k + a, n - k + b) - special.betaln(a, b), -np.inf)
    return jnp.where((n >= 0) & (a > 0) & (b > 0), found, np.nan)


@composed
def pmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Any:
    """The chance of `k`.

    >>> f"{jax.scipy.stats.betabinom.pmf(2, 5, 1.0, 2.0):.4f}"
    '0.1905'
    """
    return jnp.exp(logpmf(k, n, a, b, loc))
