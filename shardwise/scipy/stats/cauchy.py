"""Cauchy distribution with median `loc` and half width at half maximum `scale`."""

import math

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy.stats.distribution import Arguments, Distribution, in_unit_interval
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _probability(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(q, loc=loc, scale=scale)


def _survival(z: Array) -> Array:
    """Survival function of the standard distribution, by `arctan2` to avoid cancellation in the upper tail."""
    return jnp.arctan2(jnp.ones_like(z), z) / math.pi


def _inverse_survival(q: Array) -> Array:
    """Inverse survival function of the standard distribution, computed from the shorter tail for accuracy."""
    tail = jnp.minimum(q, 1 - q)
    quantile = jnp.where(tail < 0.25, 1 / jnp.tan(math.pi * tail), jnp.tan(math.pi * (0.5 - tail)))
    return jnp.where(in_unit_interval(q), jnp.where(q > 0.5, -quantile, quantile), np.nan)


_cauchy = Distribution(
    "the Cauchy distribution",
    {"loc": "the median.", "scale": "the half width at half maximum of the density."},
    logpdf=lambda z: -math.log(math.pi) - jnp.log1p(z * z),
    cdf=lambda z: _survival(-z),
    sf=_survival,
    ppf=lambda q: -_inverse_survival(q),
    isf=_inverse_survival,
    accepts_complex=("logpdf", "pdf", "ppf", "isf"),
)

cdf = _cauchy.function("cdf", _point, "2.0", "0.8524")
isf = _cauchy.function("isf", _probability, "0.8", "-1.3764")
logcdf = _cauchy.function("logcdf", _point, "2.0", "-0.1597")
logpdf = _cauchy.function("logpdf", _point, "1.0", "-1.8379")
logsf = _cauchy.function("logsf", _point, "2.0", "-1.9134")
pdf = _cauchy.function("pdf", _point, "1.0", "0.1592")
ppf = _cauchy.function("ppf", _probability, "0.8", "1.3764")
sf = _cauchy.function("sf", _point, "2.0", "0.1476")

publish(__name__)
