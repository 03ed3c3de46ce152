"""Von Mises distribution on the circle with mean angle 0 and concentration `kappa`."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special

__all__ = ["logpdf", "pdf"]


@compiled_function
def logpdf(x: Any, kappa: Any) -> Array:
    """Compute the log probability density function of the von Mises distribution.

    Args:
        x: the points at which to evaluate the log density.
        kappa: the concentration.

    Returns:
        The log density at each `x`; NaN where `kappa` is not positive.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.vonmises.logpdf(1.0, 2.0):.4f}"
        '-1.5813'
    """
    x, kappa = promote_inexact("vonmises.logpdf", x, kappa)
    log_density = kappa * (jnp.cos(x) - 1) - jnp.log(2 * math.pi * special.i0e(kappa))
    return jnp.where(kappa > 0, log_density, np.nan)


@compiled_function
def pdf(x: Any, kappa: Any) -> Array:
    """Compute the probability density function of the von Mises distribution.

    Args:
        x: the points at which to evaluate the density.
        kappa: the concentration.

    Returns:
        The density at each `x`; NaN where `kappa` is not positive.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.vonmises.pdf(1.0, 2.0):.4f}"
        '0.2057'
    """
    return jnp.exp(logpdf(x, kappa))


set_public_names(__name__, __all__)
