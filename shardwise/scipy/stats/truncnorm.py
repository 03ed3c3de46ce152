"""The normal distribution between `loc + a * scale` and `loc + b * scale`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.scipy import special
from shardwise.scipy.stats import norm
from shardwise.scipy.stats.standard import log_rest, standard

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


def _checked(found: Any, a: Any, b: Any) -> Any:
    return jnp.where(a < b, found, np.nan)


def _log_share(z: Any, a: Any, b: Any) -> Any:
    """The logarithm of the part between `a` and `z` of what lies between `a` and `b`."""
    inside = (z > a) & (z < b)
    found = _log_mass(a, jnp.where(inside, z, b)) - _log_mass(a, b)
    return _checked(jnp.where(z <= a, -np.inf, jnp.where(z >= b, 0, found)), a, b)


def _log_mass(low: Any, high: Any) -> Any:
    """The logarithm of the share of the normal distribution between two numbers, from tails that are small."""
    is_right = low > 0
    near, far = jnp.where(is_right, -low, high), jnp.where(is_right, -high, low)
    one_tail = near <= 0
    upper = special.log_ndtr(jnp.where(one_tail, near, 0))
    apart = upper - special.log_ndtr(jnp.where(one_tail, far, -1))
    both_tails = jnp.where(one_tail, 0, special.ndtr(far) + special.ndtr(-near))
    return jnp.where(one_tail, upper + log_rest(jnp.where(apart > 0, apart, 1)), jnp.log1p(-both_tails))


@composed
def cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.truncnorm.cdf(0.5, -1.0, 2.0):.4f}"
    '0.6509'
    """
    return jnp.exp(logcdf(x, a, b, loc, scale))


@composed
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.truncnorm.logcdf(0.5, -1.0, 2.0):.4f}"
    '-0.4294'
    """
    z, _, a, b = standard("truncnorm.logcdf", x, loc, scale, a, b)
    return _log_share(z, a, b)


@composed
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.truncnorm.logpdf(0.5, -1.0, 2.0):.4f}"
    '-0.8438'
    """
    z, scale, a, b = standard("truncnorm.logpdf", x, loc, scale, a, b)
    found = norm.logpdf(z) - _log_mass(a, b) - jnp.log(scale)
    return _checked(jnp.where((z < a) | (z > b), -np.inf, found), a, b)


@composed
def logsf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.truncnorm.logsf(0.5, -1.0, 2.0):.4f}"
    '-1.0523'
    """
    z, _, a, b = standard("truncnorm.logsf", x, loc, scale, a, b)
    return _log_share(-z, -b, -a)


@composed
def pdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.truncnorm.pdf(0.5, -1.0, 2.0):.4f}"
    '0.4301'
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@composed
def sf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.truncnorm.sf(0.5, -1.0, 2.0):.4f}"
    '0.3491'
    """
    return jnp.exp(logsf(x, a, b, loc, scale))
