"""The generalized normal distribution of exponent `beta`: 1 is that of Laplace, 2 the normal one."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["cdf", "logpdf", "pdf"]


def _power(x: Any, beta: Any) -> Any:
    return jnp.power(jnp.abs(x), beta)


@composed
def cdf(x: Any, beta: Any) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gennorm.cdf(1.0, 1.5):.4f}"
    '0.8876'
    """
    x, beta = floats("gennorm.cdf", x, beta)
    return 0.5 * (1 + jnp.sign(x) * special.gammainc(1 / beta, _power(x, beta)))


@composed
def logpdf(x: Any, beta: Any) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.gennorm.logpdf(1.0, 1.5):.4f}"
    '-1.5908'
    """
    x, beta = floats("gennorm.logpdf", x, beta)
    return jnp.log(0.5 * beta) - special.gammaln(1 / beta) - _power(x, beta)


@composed
def pdf(x: Any, beta: Any) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.gennorm.pdf(1.0, 1.5):.4f}"
    '0.2038'
    """
    return jnp.exp(logpdf(x, beta))
