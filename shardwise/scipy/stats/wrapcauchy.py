"""The Cauchy distribution around the circle, from 0 to 2π; `c` lies between 0 (uniform) and 1."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats

__all__ = ["logpdf", "pdf"]


@composed
def logpdf(x: Any, c: Any) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.wrapcauchy.logpdf(1.0, 0.5):.4f}"
    '-1.7826'
    """
    x, c = floats("wrapcauchy.logpdf", x, c)
    found = jnp.log1p(-c * c) - math.log(2 * math.pi) - jnp.log1p(c * c - 2 * c * jnp.cos(x))
    found = jnp.where((x < 0) | (x > 2 * math.pi), -np.inf, found)
    return jnp.where((c > 0) & (c < 1), found, np.nan)


@composed
def pdf(x: Any, c: Any) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.wrapcauchy.pdf(1.0, 0.5):.4f}"
    '0.1682'
    """
    return jnp.exp(logpdf(x, c))
