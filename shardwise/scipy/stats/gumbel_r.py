"""The Gumbel distribution of largest values, with mode `loc` and width `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats.standard import log_rest, standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gumbel_r.cdf(1.0):.4f}"
    '0.6922'
    """
    return jnp.exp(logcdf(x, loc, scale))


@composed
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gumbel_r.logcdf(1.0):.4f}"
    '-0.3679'
    """
    z, _ = standard("gumbel_r.logcdf", x, loc, scale)
    return -jnp.exp(-z)


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.gumbel_r.logpdf(1.0):.4f}"
    '-1.3679'
    """
    z, scale = standard("gumbel_r.logpdf", x, loc, scale)
    return -(z + jnp.exp(-z)) - jnp.log(scale)


@composed
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.gumbel_r.logsf(1.0):.4f}"
    '-1.1783'
    """
    return log_rest(-logcdf(x, loc, scale))


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.gumbel_r.pdf(1.0):.4f}"
    '0.2546'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(p: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `p` lies.

    >>> f"{jax.scipy.stats.gumbel_r.ppf(0.5):.4f}"
    '0.3665'
    """
    p, loc, scale = floats("gumbel_r.ppf", p, loc, scale)
    return loc - scale * jnp.log(-jnp.log(p))


@composed
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.gumbel_r.sf(1.0):.4f}"
    '0.3078'
    """
    return -jnp.expm1(logcdf(x, loc, scale))
