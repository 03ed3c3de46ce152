"""Uniform distribution on the interval from `loc` to `loc + scale`."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution, in_unit_interval
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _probability(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(q, loc=loc, scale=scale)


_uniform = Distribution(
    "the uniform distribution",
    {"loc": "the lower end of the support.", "scale": "the width of the support."},
    logpdf=lambda z: jnp.where(jnp.isnan(z), np.nan, -0.0),
    cdf=lambda z: jnp.clip(z, 0, 1),
    ppf=lambda q: jnp.where(in_unit_interval(q), q, np.nan),
    is_outside=lambda z: (z < 0) | (z > 1),
    outside="outside of the support",
    accepts_complex=EVERY_FUNCTION,
)

cdf = _uniform.function("cdf", _point, "0.25", "0.2500")
logpdf = _uniform.function("logpdf", _point, "1.0, 0.0, 2.0", "-0.6931")
pdf = _uniform.function("pdf", _point, "1.0, 0.0, 2.0", "0.5000")
ppf = _uniform.function("ppf", _probability, "0.5, 1.0, 2.0", "2.0000")

publish(__name__)
