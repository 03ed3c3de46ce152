"""The beta distribution of shapes `a` and `b`, from `loc` to `loc + scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.scipy import special
from shardwise.scipy.stats.standard import standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@composed
def cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.beta.cdf(0.25, 2.0, 3.0):.4f}"
    '0.2617'
    """
    z, _, a, b = standard("beta.cdf", x, loc, scale, a, b)
    return special.betainc(a, b, jnp.clip(z, 0, 1))


@composed
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.beta.logcdf(0.25, 2.0, 3.0):.4f}"
    '-1.3405'
    """
    return jnp.log(cdf(x, a, b, loc, scale))


@composed
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.beta.logpdf(0.25, 2.0, 3.0):.4f}"
    '0.5232'
    """
    z, scale, a, b = standard("beta.logpdf", x, loc, scale, a, b)
    is_outside = (z < 0) | (z > 1)
    z = jnp.where(is_outside, 0.5, z)
    found = special.xlogy(a - 1, z) + special.xlog1py(b - 1, -z) - special.betaln(a, b) - jnp.log(scale)
    return jnp.where(is_outside, -np.inf, found)


@composed
def logsf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.beta.logsf(0.25, 2.0, 3.0):.4f}"
    '-0.3034'
    """
    return jnp.log(sf(x, a, b, loc, scale))


@composed
def pdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.beta.pdf(0.25, 2.0, 3.0):.4f}"
    '1.6875'
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@composed
def sf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.beta.sf(0.25, 2.0, 3.0):.4f}"
    '0.7383'
    """
    z, _, a, b = standard("beta.sf", x, loc, scale, a, b)
    return special.betainc(b, a, 1 - jnp.clip(z, 0, 1))
