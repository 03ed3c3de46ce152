"""One of two: 1 with the chance `p`, 0 otherwise; `loc` beyond."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special
from shardwise.scipy.stats.standard import is_share

__all__ = ["cdf", "logpmf", "pmf", "ppf"]


@composed
def cdf(k: Any, p: Any) -> Any:
    """The share that lies at or below `k`.

    >>> f"{jax.scipy.stats.bernoulli.cdf(0, 0.3):.4f}"
    '0.7000'
    """
    k, p = floats("bernoulli.cdf", k, p)
    found = jnp.where(k < 0, 0, jnp.where(k < 1, 1 - p, 1))
    return jnp.where(jnp.isnan(k) | ~is_share(p), np.nan, found)


@composed
def logpmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """The logarithm of the chance of `k`.

    >>> f"{jax.scipy.stats.bernoulli.logpmf(1, 0.3):.4f}"
    '-1.2040'
    """
    k, p, loc = floats("bernoulli.logpmf", k, p, loc)
    k = k - loc
    return jnp.where((k < 0) | (k > 1), -np.inf, special.xlogy(k, p) + special.xlog1py(1 - k, -p))


@composed
def pmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """The chance of `k`.

    >>> f"{jax.scipy.stats.bernoulli.pmf(1, 0.3):.4f}"
    '0.3000'
    """
    return jnp.exp(logpmf(k, p, loc))


@composed
def ppf(q: Any, p: Any) -> Any:
    """The number at or below which the share `q` lies.

    >>> f"{jax.scipy.stats.bernoulli.ppf(0.9, 0.3):.4f}"
    '1.0000'
    """
    q, p = floats("bernoulli.ppf", q, p)
    found = jnp.where(q <= 1 - p, jnp.zeros_like(q), 1)
    return jnp.where(is_share(q) & is_share(p), found, np.nan)
