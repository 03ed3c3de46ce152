"""The normal distribution, with mean `loc` and standard deviation `scale`."""

import math
from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special
from shardwise.scipy.stats.standard import standard

__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.norm.cdf(1.0):.4f}"
    '0.8413'
    """
    z, _ = standard("norm.cdf", x, loc, scale)
    return special.ndtr(z)


@composed
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number above which the share `q` lies.

    >>> f"{jax.scipy.stats.norm.isf(0.975):.4f}"
    '-1.9600'
    """
    q, loc, scale = floats("norm.isf", q, loc, scale)
    return -special.ndtri(q) * scale + loc


@composed
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.norm.logcdf(-20.0):.4f}"
    '-203.9172'
    """
    z, _ = standard("norm.logcdf", x, loc, scale)
    return special.log_ndtr(z)


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.norm.logpdf(1.0):.4f}"
    '-1.4189'
    """
    z, scale = standard("norm.logpdf", x, loc, scale)
    return -0.5 * (z * z + math.log(2 * math.pi)) - jnp.log(scale)


@composed
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.norm.logsf(20.0):.4f}"
    '-203.9172'
    """
    z, _ = standard("norm.logsf", x, loc, scale)
    return special.log_ndtr(-z)


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.norm.pdf(1.0):.4f}"
    '0.2420'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `q` lies.

    >>> f"{jax.scipy.stats.norm.ppf(0.975):.4f}"
    '1.9600'
    """
    q, loc, scale = floats("norm.ppf", q, loc, scale)
    return special.ndtri(q) * scale + loc


@composed
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.norm.sf(1.0):.4f}"
    '0.1587'
    """
    z, _ = standard("norm.sf", x, loc, scale)
    return special.ndtr(-z)
