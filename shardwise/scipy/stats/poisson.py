"""How many events happen where `mu` are to be expected; `loc` beyond."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["cdf", "entropy", "logpmf", "pmf"]

_SMALL = 50.0  # below this the entropy is added up, above it has a series in 1 / mu
_TERMS = 150  # beyond these chances vanish where mu is small
_SERIES = (1 / 12, 1 / 24, 19 / 360, 9 / 80, 863 / 2520)


@composed
def cdf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """The share that lies at or below `k`.

    >>> f"{jax.scipy.stats.poisson.cdf(2, 3.0):.4f}"
    '0.4232'
    """
    k, mu, loc = floats("poisson.cdf", k, mu, loc)
    below = jnp.floor(k - loc)
    inside = below >= 0
    return jnp.where(inside, special.gammaincc(jnp.where(inside, below, 0) + 1, mu), 0)


@composed
def entropy(mu: Any, loc: Any = 0) -> Any:
    """The entropy, in nats; `loc` changes nothing.

    >>> f"{jax.scipy.stats.poisson.entropy(3.0):.4f}"
    '1.9315'
    """
    mu, _ = floats("poisson.entropy", mu, loc)
    is_small = mu < _SMALL
    small, large = jnp.where(is_small, mu, 1), jnp.where(is_small, _SMALL, mu)
    counts = jnp.arange(_TERMS, dtype=mu.dtype).reshape(*(1,) * mu.ndim, _TERMS)
    logs = logpmf(counts, small[..., None])
    added = -jnp.sum(jnp.where(logs == -np.inf, 0, jnp.exp(logs) * logs), axis=-1)
    series = jnp.zeros_like(mu)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) / large
    far = 0.5 * jnp.log(2 * math.pi * math.e * large) - series
    return jnp.where(mu >= 0, jnp.where(is_small, added, far), np.nan)


@composed
def logpmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """The logarithm of the chance of `k`.

    >>> f"{jax.scipy.stats.poisson.logpmf(2, 3.0):.4f}"
    '-1.4959'
    """
    k, mu, loc = floats("poisson.logpmf", k, mu, loc)
    k = k - loc
    found = special.xlogy(k, mu) - special.gammaln(k + 1) - mu
    return jnp.where((k < 0) | (k != jnp.floor(k)), -np.inf, found)


@composed
def pmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """The chance of `k`.

    >>> f"{jax.scipy.stats.poisson.pmf(2, 3.0):.4f}"
    '0.2240'
    """
    return jnp.exp(logpmf(k, mu, loc))
