"""The Laplace distribution: exponential to both sides of `loc`, each with mean distance `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.scipy.stats.standard import standard

__all__ = ["cdf", "logpdf", "pdf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.laplace.cdf(1.0):.4f}"
    '0.8161'
    """
    z, _ = standard("laplace.cdf", x, loc, scale)
    tail = 0.5 * jnp.exp(-jnp.abs(z))
    return jnp.where(z < 0, tail, 1 - tail)


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.laplace.logpdf(1.0):.4f}"
    '-1.6931'
    """
    z, scale = standard("laplace.logpdf", x, loc, scale)
    return -jnp.abs(z) - jnp.log(2 * scale)


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.laplace.pdf(1.0):.4f}"
    '0.1839'
    """
    return jnp.exp(logpdf(x, loc, scale))
