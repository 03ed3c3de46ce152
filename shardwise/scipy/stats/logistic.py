"""Logistic distribution with mean `loc` and scale `scale`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _log_density(z: Array) -> Array:
    distance = jnp.abs(z)
    return -distance - 2 * jnp.log1p(jnp.exp(-distance))


_logistic = Distribution(
    "the logistic distribution",
    {"loc": "the mean.", "scale": "the scale."},
    logpdf=_log_density,
    cdf=special.expit,
    sf=lambda z: special.expit(-z),
    ppf=special.logit,
    isf=lambda q: -special.logit(q),
    accepts_complex=EVERY_FUNCTION,
)

cdf = _logistic.function("cdf", _point, "1.0", "0.7311")
isf = _logistic.function("isf", _point, "0.75", "-1.0986")
logpdf = _logistic.function("logpdf", _point, "1.0", "-1.6265")
pdf = _logistic.function("pdf", _point, "1.0", "0.1966")
ppf = _logistic.function("ppf", _point, "0.75", "1.0986")
sf = _logistic.function("sf", _point, "1.0", "0.2689")

publish(__name__)
