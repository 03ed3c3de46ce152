"""Beta distribution with shape parameters `a` and `b` on the interval from `loc` to `loc + scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.scipy import special
from shardwise.scipy.stats.standardize import standardize

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@compiled_function
def cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the beta distribution.

    The result is not differentiable with respect to `a` and `b`.

    Args:
        x: the points at which to evaluate the function.
        a, b: the shape parameters.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.beta.cdf(0.25, 2.0, 3.0):.4f}"
        '0.2617'
    """
    z, _, a, b = standardize("beta.cdf", x, loc, scale, a, b)
    return special.betainc(a, b, jnp.clip(z, 0, 1))


@compiled_function
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the beta distribution.

    The result is not differentiable with respect to `a` and `b`.

    Args:
        x: the points at which to evaluate the function.
        a, b: the shape parameters.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.beta.logcdf(0.25, 2.0, 3.0):.4f}"
        '-1.3405'
    """
    return jnp.log(cdf(x, a, b, loc, scale))


@compiled_function
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the beta distribution.

    Args:
        x: the points at which to evaluate the log density.
        a, b: the shape parameters.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The log density at each `x`; -inf outside of the support.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.beta.logpdf(0.25, 2.0, 3.0):.4f}"
        '0.5232'
    """
    z, scale, a, b = standardize("beta.logpdf", x, loc, scale, a, b)
    is_outside = (z < 0) | (z > 1)
    z = jnp.where(is_outside, 0.5, z)
    log_density = special.xlogy(a - 1, z) + special.xlog1py(b - 1, -z) - special.betaln(a, b) - jnp.log(scale)
    return jnp.where(is_outside, -np.inf, log_density)


@compiled_function
def logsf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the beta distribution.

    The result is not differentiable with respect to `a` and `b`.

    Args:
        x: the points at which to evaluate the function.
        a, b: the shape parameters.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.beta.logsf(0.25, 2.0, 3.0):.4f}"
        '-0.3034'
    """
    return jnp.log(sf(x, a, b, loc, scale))


@compiled_function
def pdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the beta distribution.

    Args:
        x: the points at which to evaluate the density.
        a, b: the shape parameters.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The density at each `x`; 0 outside of the support.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.beta.pdf(0.25, 2.0, 3.0):.4f}"
        '1.6875'
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@compiled_function
def sf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the beta distribution.

    The result is not differentiable with respect to `a` and `b`.

    Args:
        x: the points at which to evaluate the function.
        a, b: the shape parameters.
        loc: the lower end of the support.
        scale: the width of the support.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.beta.sf(0.25, 2.0, 3.0):.4f}"
        '0.7383'
    """
    z, _, a, b = standardize("beta.sf", x, loc, scale, a, b)
    return special.betainc(b, a, 1 - jnp.clip(z, 0, 1))


set_public_names(__name__, __all__)
