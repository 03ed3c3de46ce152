"""The distribution of von Mises on the circle, gathered around the angle 0 the more the larger `kappa` is."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["logpdf", "pdf"]


@composed
def logpdf(x: Any, kappa: Any) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.vonmises.logpdf(1.0, 2.0):.4f}"
    '-1.5813'
    """
    x, kappa = floats("vonmises.logpdf", x, kappa)
    found = kappa * (jnp.cos(x) - 1) - jnp.log(2 * math.pi * special.i0e(kappa))
    return jnp.where(kappa > 0, found, np.nan)


@composed
def pdf(x: Any, kappa: Any) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.vonmises.pdf(1.0, 2.0):.4f}"
    '0.2057'
    """
    return jnp.exp(logpdf(x, kappa))
