"""The Pareto distribution of exponent `b`, from `loc + scale` on."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats.standard import is_share, log_rest, standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


def _log(z: Any) -> Any:
    """The logarithm where the distribution lies, and 0 before."""
    return jnp.log(jnp.where(z < 1, 1, z))


@composed
def cdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.pareto.cdf(2.0, 1.5):.4f}"
    '0.6464'
    """
    return -jnp.expm1(logsf(x, b, loc, scale))


@composed
def logcdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.pareto.logcdf(2.0, 1.5):.4f}"
    '-0.4363'
    """
    z, _, b = standard("pareto.logcdf", x, loc, scale, b)
    return jnp.where(z <= 1, -np.inf, log_rest(jnp.where(z <= 1, 1, b * _log(z))))


@composed
def logpdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.pareto.logpdf(2.0, 1.5):.4f}"
    '-1.3274'
    """
    z, scale, b = standard("pareto.logpdf", x, loc, scale, b)
    found = jnp.log(b) - (b + 1) * _log(z) - jnp.log(scale)
    return jnp.where(z < 1, -np.inf, found)


@composed
def logsf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.pareto.logsf(2.0, 1.5):.4f}"
    '-1.0397'
    """
    z, _, b = standard("pareto.logsf", x, loc, scale, b)
    return -b * _log(z)


@composed
def pdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.pareto.pdf(2.0, 1.5):.4f}"
    '0.2652'
    """
    return jnp.exp(logpdf(x, b, loc, scale))


@composed
def ppf(q: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `q` lies.

    >>> f"{jax.scipy.stats.pareto.ppf(0.5, 1.5):.4f}"
    '1.5874'
    """
    q, b, loc, scale = floats("pareto.ppf", q, b, loc, scale)
    return jnp.where(is_share(q), jnp.exp(-jnp.log1p(-q) / b), np.nan) * scale + loc


@composed
def sf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.pareto.sf(2.0, 1.5):.4f}"
    '0.3536'
    """
    return jnp.exp(logsf(x, b, loc, scale))
