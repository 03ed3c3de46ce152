"""Bernoulli distribution: 1 with probability `p`, 0 otherwise, shifted by `loc`."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution, in_unit_interval
from shardwise.typing import ArrayLike


def _outcome(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Arguments:
    return Arguments(k, p, loc=loc)


def _cumulative(k: ArrayLike, p: ArrayLike) -> Arguments:
    return Arguments(k, p)


def _quantile(q: ArrayLike, p: ArrayLike) -> Arguments:
    return Arguments(q, p)


def _standard_cdf(k: Array, p: Array) -> Array:
    probability = jnp.where(k < 0, 0, jnp.where(k < 1, 1 - p, 1))
    return jnp.where(jnp.isnan(k) | ~in_unit_interval(p), np.nan, probability)


def _standard_ppf(q: Array, p: Array) -> Array:
    quantile = jnp.where(q <= 1 - p, jnp.zeros_like(q), 1)
    return jnp.where(in_unit_interval(q) & in_unit_interval(p), quantile, np.nan)


_bernoulli = Distribution(
    "the Bernoulli distribution",
    {"p": "the probability of the outcome 1.", "loc": "the shift of the distribution."},
    logpmf=lambda k, p: special.xlogy(k, p) + special.xlog1py(1 - k, -p),
    cdf=_standard_cdf,
    ppf=_standard_ppf,
    is_outside=lambda k, p: (k < 0) | (k > 1),
    outside="where `k - loc` is outside of 0 to 1",
    accepts_complex=("cdf", "ppf"),
)

cdf = _bernoulli.function(
    "cdf",
    _cumulative,
    "0, 0.3",
    "0.7000",
    returns="The probability of a value at or below each `k`; NaN where `p` is not between 0 and 1.",
)
logpmf = _bernoulli.function("logpmf", _outcome, "1, 0.3", "-1.2040")
pmf = _bernoulli.function("pmf", _outcome, "1, 0.3", "0.3000")
ppf = _bernoulli.function(
    "ppf",
    _quantile,
    "0.9, 0.3",
    "1.0000",
    returns="The smallest outcome with a cumulative probability of at least `q`; "
    "NaN where `q` or `p` is not between 0 and 1.",
)

publish(__name__)
