"""The exponential distribution from `loc` on, whose mean lies `scale` beyond."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats.standard import is_share, log_rest, standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.expon.cdf(1.0):.4f}"
    '0.6321'
    """
    z, _ = standard("expon.cdf", x, loc, scale)
    return -jnp.expm1(jnp.where(z < 0, 0, -z))


@composed
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.expon.logcdf(1.0):.4f}"
    '-0.4587'
    """
    z, _ = standard("expon.logcdf", x, loc, scale)
    return jnp.where(z <= 0, -np.inf, log_rest(jnp.where(z <= 0, 1, z)))


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.expon.logpdf(1.0):.4f}"
    '-1.0000'
    """
    z, scale = standard("expon.logpdf", x, loc, scale)
    return jnp.where(z < 0, -np.inf, -z - jnp.log(scale))


@composed
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.expon.logsf(1.5):.4f}"
    '-1.5000'
    """
    z, _ = standard("expon.logsf", x, loc, scale)
    return jnp.where(z < 0, 0, -z)


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.expon.pdf(1.0):.4f}"
    '0.3679'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `q` lies.

    >>> f"{jax.scipy.stats.expon.ppf(0.5):.4f}"
    '0.6931'
    """
    q, loc, scale = floats("expon.ppf", q, loc, scale)
    return jnp.where(is_share(q), -jnp.log1p(-q), np.nan) * scale + loc


@composed
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.expon.sf(1.0):.4f}"
    '0.3679'
    """
    return jnp.exp(logsf(x, loc, scale))
