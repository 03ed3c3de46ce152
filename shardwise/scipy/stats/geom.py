"""How many trials it takes until one succeeds, each with the chance `p`; `loc` beyond."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["logpmf", "pmf"]


@composed
def logpmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """The logarithm of the chance of `k`.

    >>> f"{jax.scipy.stats.geom.logpmf(2, 0.3):.4f}"
    '-1.5606'
    """
    k, p, loc = floats("geom.logpmf", k, p, loc)
    fails = k - loc - 1
    return jnp.where(fails < 0, -np.inf, special.xlog1py(fails, -p) + jnp.log(p))


@composed
def pmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """The chance of `k`.

    >>> f"{jax.scipy.stats.geom.pmf(2, 0.3):.4f}"
    '0.2100'
    """
    return jnp.exp(logpmf(k, p, loc))
