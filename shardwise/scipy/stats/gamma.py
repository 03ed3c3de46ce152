"""Gamma distribution with shape parameter `a`, scale `scale` and support from `loc`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, a, loc=loc, scale=scale)


_gamma = Distribution(
    "the gamma distribution",
    {
        "a": "the shape parameter.",
        "loc": "the lower end of the support.",
        "scale": "the scale, the inverse of the rate.",
    },
    logpdf=lambda z, a: special.xlogy(a - 1, z) - z - special.gammaln(a),
    cdf=lambda z, a: special.gammainc(a, jnp.maximum(z, 0)),
    sf=lambda z, a: special.gammaincc(a, jnp.maximum(z, 0)),
    is_outside=lambda z, a: z < 0,
    inside=1,
    outside="below `loc`",
)

cdf = _gamma.function("cdf", _point, "1.5, 2.0", "0.4422")
logcdf = _gamma.function("logcdf", _point, "1.5, 2.0", "-0.8161")
logpdf = _gamma.function("logpdf", _point, "1.5, 2.0", "-1.0945")
logsf = _gamma.function("logsf", _point, "1.5, 2.0", "-0.5837")
pdf = _gamma.function("pdf", _point, "1.5, 2.0", "0.3347")
sf = _gamma.function("sf", _point, "1.5, 2.0", "0.5578")

publish(__name__)
