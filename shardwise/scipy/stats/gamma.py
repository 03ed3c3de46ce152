"""The gamma distribution of shape `a` and width `scale`, from `loc` on."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.scipy import special
from shardwise.scipy.stats.standard import standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@composed
def cdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gamma.cdf(1.5, 2.0):.4f}"
    '0.4422'
    """
    z, _, a = standard("gamma.cdf", x, loc, scale, a)
    return special.gammainc(a, jnp.maximum(z, 0))


@composed
def logcdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.gamma.logcdf(1.5, 2.0):.4f}"
    '-0.8161'
    """
    return jnp.log(cdf(x, a, loc, scale))


@composed
def logpdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.gamma.logpdf(1.5, 2.0):.4f}"
    '-1.0945'
    """
    z, scale, a = standard("gamma.logpdf", x, loc, scale, a)
    is_outside = z < 0
    z = jnp.where(is_outside, 1, z)
    found = special.xlogy(a - 1, z) - z - special.gammaln(a) - jnp.log(scale)
    return jnp.where(is_outside, -np.inf, found)


@composed
def logsf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.gamma.logsf(1.5, 2.0):.4f}"
    '-0.5837'
    """
    return jnp.log(sf(x, a, loc, scale))


@composed
def pdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.gamma.pdf(1.5, 2.0):.4f}"
    '0.3347'
    """
    return jnp.exp(logpdf(x, a, loc, scale))


@composed
def sf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.gamma.sf(1.5, 2.0):.4f}"
    '0.5578'
    """
    z, _, a = standard("gamma.sf", x, loc, scale, a)
    return special.gammaincc(a, jnp.maximum(z, 0))
