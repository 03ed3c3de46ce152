"""Exponential distribution with support from `loc` and mean `loc + scale`."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution, in_unit_interval
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _probability(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(q, loc=loc, scale=scale)


_exponential = Distribution(
    "the exponential distribution",
    {"loc": "the lower end of the support.", "scale": "the scale, the inverse of the rate."},
    logpdf=lambda z: -z,
    logsf=lambda z: jnp.where(z < 0, 0, -z),
    ppf=lambda q: jnp.where(in_unit_interval(q), -jnp.log1p(-q), np.nan),
    is_outside=lambda z: z < 0,
    outside="below `loc`",
    accepts_complex=EVERY_FUNCTION,
)

cdf = _exponential.function("cdf", _point, "1.0", "0.6321")
logcdf = _exponential.function("logcdf", _point, "1.0", "-0.4587")
logpdf = _exponential.function("logpdf", _point, "1.0", "-1.0000")
logsf = _exponential.function("logsf", _point, "1.5", "-1.5000")
pdf = _exponential.function("pdf", _point, "1.0", "0.3679")
ppf = _exponential.function("ppf", _probability, "0.5", "0.6931")
sf = _exponential.function("sf", _point, "1.0", "0.3679")

publish(__name__)
