"""Wrapped Cauchy distribution on the circle from 0 to 2π with concentration `c` between 0 and 1."""

import math
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact

__all__ = ["logpdf", "pdf"]


@compiled_function
def logpdf(x: Any, c: Any) -> Array:
    """Compute the log probability density function of the wrapped Cauchy distribution.

    Args:
        x: the points at which to evaluate the log density.
        c: the concentration, between 0 and 1.

    Returns:
        The log density at each `x`; -inf outside of 0 to 2π, NaN unless `0 < c < 1`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.wrapcauchy.logpdf(1.0, 0.5):.4f}"
        '-1.7826'
    """
    x, c = promote_inexact("wrapcauchy.logpdf", x, c)
    log_density = jnp.log1p(-c * c) - math.log(2 * math.pi) - jnp.log1p(c * c - 2 * c * jnp.cos(x))
    log_density = jnp.where((x < 0) | (x > 2 * math.pi), -np.inf, log_density)
    return jnp.where((c > 0) & (c < 1), log_density, np.nan)


@compiled_function
def pdf(x: Any, c: Any) -> Array:
    """Compute the probability density function of the wrapped Cauchy distribution.

    Args:
        x: the points at which to evaluate the density.
        c: the concentration, between 0 and 1.

    Returns:
        The density at each `x`; 0 outside of 0 to 2π, NaN unless `0 < c < 1`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.wrapcauchy.pdf(1.0, 0.5):.4f}"
        '0.1682'
    """
    return jnp.exp(logpdf(x, c))


set_public_names(__name__, __all__)
