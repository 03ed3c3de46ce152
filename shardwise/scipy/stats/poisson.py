"""Poisson distribution with mean `mu`, shifted by `loc`."""

import math

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike

_SERIES_FROM = 50.0  # from this `mu` on, the entropy is an asymptotic series in 1 / mu instead of a sum
_TERMS = 150  # terms of the sum; for `mu` below _SERIES_FROM the remaining ones vanish
_SERIES = (1 / 12, 1 / 24, 19 / 360, 9 / 80, 863 / 2520)


def _outcome(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Arguments:
    return Arguments(k, mu, loc=loc)


def _standard_cdf(k: Array, mu: Array) -> Array:
    count = jnp.floor(k)
    in_support = count >= 0
    return jnp.where(in_support, special.gammaincc(jnp.where(in_support, count, 0) + 1, mu), 0)


_poisson = Distribution(
    "the Poisson distribution",
    {"mu": "the mean before the shift.", "loc": "the shift of the distribution."},
    logpmf=lambda k, mu: special.xlogy(k, mu) - special.gammaln(k + 1) - mu,
    cdf=_standard_cdf,
    is_outside=lambda k, mu: (k < 0) | (k != jnp.floor(k)),
    outside="where `k - loc` is negative or not an integer",
)

cdf = _poisson.function("cdf", _outcome, "2, 3.0", "0.4232")
logpmf = _poisson.function("logpmf", _outcome, "2, 3.0", "-1.4959")
pmf = _poisson.function("pmf", _outcome, "2, 3.0", "0.2240")


@compiled_function
def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Compute the entropy of the Poisson distribution in nats.

    The entropy is summed term by term for small `mu` and evaluated by an asymptotic series for large `mu`.

    Args:
        mu: the mean before the shift.
        loc: the shift of the distribution, which does not change the entropy.

    Returns:
        The entropy for each `mu`; NaN where `mu` is negative.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.poisson.entropy(3.0):.4f}"
        '1.9315'
    """
    (mean,), *_ = Arguments(mu, loc=loc).promote("poisson.entropy")
    is_small = mean < _SERIES_FROM
    small, large = jnp.where(is_small, mean, 1), jnp.where(is_small, _SERIES_FROM, mean)
    counts = jnp.arange(_TERMS, dtype=mean.dtype).reshape(*(1,) * mean.ndim, _TERMS)
    log_mass = logpmf(counts, small[..., None])
    summed = -jnp.sum(jnp.where(log_mass == -np.inf, 0, jnp.exp(log_mass) * log_mass), axis=-1)
    series = jnp.zeros_like(mean)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) / large
    asymptotic = 0.5 * jnp.log(2 * math.pi * math.e * large) - series
    return jnp.where(mean >= 0, jnp.where(is_small, summed, asymptotic), np.nan)


publish(__name__)
