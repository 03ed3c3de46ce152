"""Normal distribution with mean `loc` and standard deviation `scale`."""

import math

from shardwise.base.lazy import publish
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _probability(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(q, loc=loc, scale=scale)


_normal = Distribution(
    "the normal distribution",
    {"loc": "the mean.", "scale": "the standard deviation."},
    logpdf=lambda z: -0.5 * (z * z + math.log(2 * math.pi)),
    cdf=special.ndtr,
    logcdf=special.log_ndtr,
    sf=lambda z: special.ndtr(-z),
    logsf=lambda z: special.log_ndtr(-z),
    ppf=special.ndtri,
    isf=lambda q: -special.ndtri(q),
    accepts_complex=("logpdf", "pdf"),
)

cdf = _normal.function("cdf", _point, "1.0", "0.8413")
isf = _normal.function("isf", _probability, "0.975", "-1.9600")
logcdf = _normal.function(
    "logcdf", _point, "-20.0", "-203.9172", note="It is accurate in the lower tail, where `cdf` underflows."
)
logpdf = _normal.function("logpdf", _point, "1.0", "-1.4189")
logsf = _normal.function(
    "logsf", _point, "20.0", "-203.9172", note="It is accurate in the upper tail, where `sf` underflows."
)
pdf = _normal.function("pdf", _point, "1.0", "0.2420")
ppf = _normal.function("ppf", _probability, "0.975", "1.9600")
sf = _normal.function("sf", _point, "1.0", "0.1587")

publish(__name__)
