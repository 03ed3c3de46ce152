"""Pareto distribution with exponent `b` and support from `loc + scale`."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution, in_unit_interval
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, b, loc=loc, scale=scale)


def _probability(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(q, b, loc=loc, scale=scale)


_pareto = Distribution(
    "the Pareto distribution",
    {
        "b": "the exponent of the tail.",
        "loc": "the shift of the distribution.",
        "scale": "the scale; the support begins at `loc + scale`.",
    },
    logpdf=lambda z, b: jnp.log(b) - (b + 1) * jnp.log(z),
    logsf=lambda z, b: -b * jnp.log(jnp.where(z < 1, 1, z)),
    ppf=lambda q, b: jnp.where(in_unit_interval(q), jnp.exp(-jnp.log1p(-q) / b), np.nan),
    is_outside=lambda z, b: z < 1,
    inside=1,
    outside="below the support",
    accepts_complex=EVERY_FUNCTION,
)

cdf = _pareto.function("cdf", _point, "2.0, 1.5", "0.6464")
logcdf = _pareto.function("logcdf", _point, "2.0, 1.5", "-0.4363")
logpdf = _pareto.function("logpdf", _point, "2.0, 1.5", "-1.3274")
logsf = _pareto.function("logsf", _point, "2.0, 1.5", "-1.0397")
pdf = _pareto.function("pdf", _point, "2.0, 1.5", "0.2652")
ppf = _pareto.function("ppf", _probability, "0.5, 1.5", "1.5874")
sf = _pareto.function("sf", _point, "2.0, 1.5", "0.3536")

publish(__name__)
