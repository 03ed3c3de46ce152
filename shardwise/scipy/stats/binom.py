"""How many of `n` trials succeed, each with the chance `p`; `loc` beyond."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["logpmf", "pmf"]


@composed
def logpmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """The logarithm of the chance of `k`.

    >>> f"{jax.scipy.stats.binom.logpmf(2, 5, 0.3):.4f}"
    '-1.1754'
    """
    k, n, p, loc = floats("binom.logpmf", k, n, p, loc)
    inside = (k >= loc) & (k <= loc + n)
    k = jnp.where(inside, k - loc, 0)
    ways = -jnp.log(n + 1) - special.betaln(k + 1, n - k + 1)
    return jnp.where(inside, ways + special.xlogy(k, p) + special.xlog1py(n - k, -p), -np.inf)


@composed
def pmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """The chance of `k`.

    >>> f"{jax.scipy.stats.binom.pmf(2, 5, 0.3):.4f}"
    '0.3087'
    """
    return jnp.exp(logpmf(k, n, p, loc))
