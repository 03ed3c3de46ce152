"""Generalized normal distribution with exponent `beta`; 1 is the Laplace distribution, 2 a normal distribution."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, beta: ArrayLike) -> Arguments:
    return Arguments(x, beta)


def _abs_power(x: Array, beta: Array) -> Array:
    return jnp.power(jnp.abs(x), beta)


_generalized_normal = Distribution(
    "the generalized normal distribution",
    {"beta": "the exponent, positive."},
    logpdf=lambda x, beta: jnp.log(0.5 * beta) - special.gammaln(1 / beta) - _abs_power(x, beta),
    cdf=lambda x, beta: 0.5 * (1 + jnp.sign(x) * special.gammainc(1 / beta, _abs_power(x, beta))),
)

cdf = _generalized_normal.function("cdf", _point, "1.0, 1.5", "0.8876")
logpdf = _generalized_normal.function("logpdf", _point, "1.0, 1.5", "-1.5908")
pdf = _generalized_normal.function("pdf", _point, "1.0, 1.5", "0.2038")

publish(__name__)
