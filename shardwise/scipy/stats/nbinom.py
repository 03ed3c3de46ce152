"""How many trials fail before `n` of them succeed, each with the chance `p`; `loc` beyond."""

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

    >>> f"{jax.scipy.stats.nbinom.logpmf(2, 5, 0.3):.4f}"
    '-4.0252'
    """
    k, n, p, loc = floats("nbinom.logpmf", k, n, p, loc)
    inside = k >= loc
    k = jnp.where(inside, k - loc, 0)
    ways = -jnp.log(n + k) - special.betaln(k + 1, n)
    return jnp.where(inside, ways + special.xlogy(n, p) + special.xlog1py(k, -p), -np.inf)


@composed
def pmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """The chance of `k`.

    >>> f"{jax.scipy.stats.nbinom.pmf(2, 5, 0.3):.4f}"
    '0.0179'
    """
    return jnp.exp(logpmf(k, n, p, loc))
