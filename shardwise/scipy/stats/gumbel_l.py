"""Left-skewed Gumbel distribution (of minima) with mode `loc` and scale `scale`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy.stats.distribution import EVERY_FUNCTION, Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, loc=loc, scale=scale)


def _probability(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(p, loc=loc, scale=scale)


_gumbel = Distribution(
    "the left-skewed Gumbel distribution",
    {"loc": "the mode.", "scale": "the scale."},
    logpdf=lambda z: z - jnp.exp(z),
    logsf=lambda z: -jnp.exp(z),
    ppf=lambda p: jnp.log(-jnp.log1p(-p)),
    accepts_complex=EVERY_FUNCTION,
)

cdf = _gumbel.function("cdf", _point, "-1.0", "0.3078")
logcdf = _gumbel.function("logcdf", _point, "-1.0", "-1.1783")
logpdf = _gumbel.function("logpdf", _point, "1.0", "-1.7183")
logsf = _gumbel.function("logsf", _point, "1.0", "-2.7183")
pdf = _gumbel.function("pdf", _point, "1.0", "0.1794")
ppf = _gumbel.function("ppf", _probability, "0.5", "-0.3665")
sf = _gumbel.function("sf", _point, "-1.0", "0.6922")

publish(__name__)
