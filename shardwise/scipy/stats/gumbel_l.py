"""The Gumbel distribution of smallest values, with mode `loc` and width `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats.standard import log_rest, standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gumbel_l.cdf(-1.0):.4f}"
    '0.3078'
    """
    return -jnp.expm1(logsf(x, loc, scale))


@composed
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gumbel_l.logcdf(-1.0):.4f}"
    '-1.1783'
    """
    return log_rest(-logsf(x, loc, scale))


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.gumbel_l.logpdf(1.0):.4f}"
    '-1.7183'
    """
    z, scale = standard("gumbel_l.logpdf", x, loc, scale)
    return z - jnp.exp(z) - jnp.log(scale)


@composed
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.gumbel_l.logsf(1.0):.4f}"
    '-2.7183'
    """
    z, _ = standard("gumbel_l.logsf", x, loc, scale)
    return -jnp.exp(z)


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.gumbel_l.pdf(1.0):.4f}"
    '0.1794'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(p: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `p` lies.

    >>> f"{jax.scipy.stats.gumbel_l.ppf(0.5):.4f}"
    '-0.3665'
    """
    p, loc, scale = floats("gumbel_l.ppf", p, loc, scale)
    return loc + scale * jnp.log(-jnp.log1p(-p))


@composed
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.gumbel_l.sf(-1.0):.4f}"
    '0.6922'
    """
    return jnp.exp(logsf(x, loc, scale))
