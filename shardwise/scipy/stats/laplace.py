"""Laplace (double exponential) distribution with mean `loc` and mean absolute deviation `scale`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _standard_cdf(z: Array) -> Array:
    tail = 0.5 * jnp.exp(-jnp.abs(z))
    return jnp.where(z < 0, tail, 1 - tail)


_laplace = Distribution(
    "the Laplace distribution",
    {"loc": "the mean.", "scale": "the mean absolute deviation."},
    logpdf=lambda z: -jnp.abs(z),
    width=2,
    cdf=_standard_cdf,
    accepts_complex=EVERY_FUNCTION,
)

cdf = _laplace.function("cdf", _point, "1.0", "0.8161")
logpdf = _laplace.function("logpdf", _point, "1.0", "-1.6931")
pdf = _laplace.function("pdf", _point, "1.0", "0.1839")

publish(__name__)
