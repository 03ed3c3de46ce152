"""The uniform distribution from `loc` to `loc + scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats.standard import is_share, standard

__all__ = ["cdf", "logpdf", "pdf", "ppf"]


@composed
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.uniform.cdf(0.25):.4f}"
    '0.2500'
    """
    z, _ = standard("uniform.cdf", x, loc, scale)
    return jnp.clip(z, 0, 1)


@composed
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.uniform.logpdf(1.0, 0.0, 2.0):.4f}"
    '-0.6931'
    """
    z, scale = standard("uniform.logpdf", x, loc, scale)
    return jnp.where(is_share(z), -jnp.log(scale), jnp.where(jnp.isnan(z), np.nan, -np.inf))


@composed
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.uniform.pdf(1.0, 0.0, 2.0):.4f}"
    '0.5000'
    """
    return jnp.exp(logpdf(x, loc, scale))


@composed
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The number at or below which the share `q` lies.

    >>> f"{jax.scipy.stats.uniform.ppf(0.5, 1.0, 2.0):.4f}"
    '2.0000'
    """
    q, loc, scale = floats("uniform.ppf", q, loc, scale)
    return jnp.where(is_share(q), q, np.nan) * scale + loc
