"""The logistic distribution, with mean `loc` and width `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special
from shardwise.scipy.stats.standard import standard

__all__ = ["cdf", "isf", "logpdf", "pdf", "ppf", "sf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.logistic.cdf(1.0):.4f}"
    '0.7311'
    """
    z, _ = standard("logistic.cdf", x, loc, scale)
    return special.expit(z)


@composed
def isf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number above which the share `x` lies.

    >>> f"{jax.scipy.stats.logistic.isf(0.75):.4f}"
    '-1.0986'
    """
    q, loc, scale = floats("logistic.isf", x, loc, scale)
    return -special.logit(q) * scale + loc


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.logistic.logpdf(1.0):.4f}"
    '-1.6265'
    """
    z, scale = standard("logistic.logpdf", x, loc, scale)
    distance = jnp.abs(z)
    return -distance - 2 * jnp.log1p(jnp.exp(-distance)) - jnp.log(scale)


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.logistic.pdf(1.0):.4f}"
    '0.1966'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `x` lies.

    >>> f"{jax.scipy.stats.logistic.ppf(0.75):.4f}"
    '1.0986'
    """
    q, loc, scale = floats("logistic.ppf", x, loc, scale)
    return special.logit(q) * scale + loc


@composed
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.logistic.sf(1.0):.4f}"
    '0.2689'
    """
    z, _ = standard("logistic.sf", x, loc, scale)
    return special.expit(-z)
