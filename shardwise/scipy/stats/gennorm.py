"""Generalized normal distribution with exponent `beta`; 1 is the Laplace distribution, 2 a normal distribution."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special

__all__ = ["cdf", "logpdf", "pdf"]


def _abs_power(x: Any, beta: Any) -> Any:
    return jnp.power(jnp.abs(x), beta)


@compiled_function
def cdf(x: Any, beta: Any) -> Array:
    """Compute the cumulative distribution function of the generalized normal distribution.

    Args:
        x: the points at which to evaluate the function.
        beta: the exponent, positive.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gennorm.cdf(1.0, 1.5):.4f}"
        '0.8876'
    """
    x, beta = promote_inexact("gennorm.cdf", x, beta)
    return 0.5 * (1 + jnp.sign(x) * special.gammainc(1 / beta, _abs_power(x, beta)))


@compiled_function
def logpdf(x: Any, beta: Any) -> Array:
    """Compute the log probability density function of the generalized normal distribution.

    Args:
        x: the points at which to evaluate the log density.
        beta: the exponent, positive.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gennorm.logpdf(1.0, 1.5):.4f}"
        '-1.5908'
    """
    x, beta = promote_inexact("gennorm.logpdf", x, beta)
    return jnp.log(0.5 * beta) - special.gammaln(1 / beta) - _abs_power(x, beta)


@compiled_function
def pdf(x: Any, beta: Any) -> Array:
    """Compute the probability density function of the generalized normal distribution.

    Args:
        x: the points at which to evaluate the density.
        beta: the exponent, positive.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.gennorm.pdf(1.0, 1.5):.4f}"
        '0.2038'
    """
    return jnp.exp(logpdf(x, beta))


set_public_names(__name__, __all__)
