"""Wrapped Cauchy distribution on the circle from 0 to 2π with concentration `c` between 0 and 1."""

import math

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, c: ArrayLike) -> Arguments:
    return Arguments(x, c)


def _log_density(x: Array, c: Array) -> Array:
    return jnp.log1p(-c * c) - math.log(2 * math.pi) - jnp.log1p(c * c - 2 * c * jnp.cos(x))


_wrapped_cauchy = Distribution(
    "the wrapped Cauchy distribution",
    {"c": "the concentration, between 0 and 1."},
    logpdf=_log_density,
    is_outside=lambda x, c: (x < 0) | (x > 2 * math.pi),
    outside="outside of 0 to 2π",
    is_valid=lambda c: (c > 0) & (c < 1),
    invalid="unless `0 < c < 1`",
    accepts_complex=EVERY_FUNCTION,
)

logpdf = _wrapped_cauchy.function("logpdf", _point, "1.0, 0.5", "-1.7826")
pdf = _wrapped_cauchy.function("pdf", _point, "1.0, 0.5", "0.1682")

publish(__name__)
