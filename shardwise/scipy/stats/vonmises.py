"""Von Mises distribution on the circle with mean angle 0 and concentration `kappa`."""

import math

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, kappa: ArrayLike) -> Arguments:
    return Arguments(x, kappa)


_von_mises = Distribution(
    "the von Mises distribution",
    {"kappa": "the concentration."},
    logpdf=lambda x, kappa: kappa * (jnp.cos(x) - 1) - jnp.log(2 * math.pi * special.i0e(kappa)),
    is_valid=lambda kappa: kappa > 0,
    invalid="where `kappa` is not positive",
)

logpdf = _von_mises.function("logpdf", _point, "1.0, 2.0", "-1.5813")
pdf = _von_mises.function("pdf", _point, "1.0, 2.0", "0.2057")

publish(__name__)
