"""The Cauchy distribution, with median `loc` and half its width at half its height `scale`."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats.standard import is_share, standard

__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


def _share_above(z: Any) -> Any:
    """As an angle, which is exact where it is small; half a right angle less another is not."""
    return jnp.arctan2(jnp.ones_like(z), z) / math.pi


def _place_above(q: Any) -> Any:
    """The cotangent of the angle, from the nearer end: there it is infinite."""
    shorter = jnp.minimum(q, 1 - q)
    found = jnp.where(shorter < 0.25, 1 / jnp.tan(math.pi * shorter), jnp.tan(math.pi * (0.5 - shorter)))
    return jnp.where(is_share(q), jnp.where(q > 0.5, -found, found), np.nan)


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.cauchy.cdf(2.0):.4f}"
    '0.8524'
    """
    z, _ = standard("cauchy.cdf", x, loc, scale)
    return _share_above(-z)


@composed
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number above which the share `q` lies.

    >>> f"{jax.scipy.stats.cauchy.isf(0.8):.4f}"
    '-1.3764'
    """
    q, loc, scale = floats("cauchy.isf", q, loc, scale)
    return loc + scale * _place_above(q)


@composed
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.cauchy.logcdf(2.0):.4f}"
    '-0.1597'
    """
    return jnp.log(cdf(x, loc, scale))


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.cauchy.logpdf(1.0):.4f}"
    '-1.8379'
    """
    z, scale = standard("cauchy.logpdf", x, loc, scale)
    return -math.log(math.pi) - jnp.log1p(z * z) - jnp.log(scale)


@composed
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.cauchy.logsf(2.0):.4f}"
    '-1.9134'
    """
    return jnp.log(sf(x, loc, scale))


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.cauchy.pdf(1.0):.4f}"
    '0.1592'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `q` lies.

    >>> f"{jax.scipy.stats.cauchy.ppf(0.8):.4f}"
    '1.3764'
    """
    q, loc, scale = floats("cauchy.ppf", q, loc, scale)
    return loc - scale * _place_above(q)


@composed
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.cauchy.sf(2.0):.4f}"
    '0.1476'
    """
    z, _ = standard("cauchy.sf", x, loc, scale)
    return _share_above(z)
