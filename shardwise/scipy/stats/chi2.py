"""Chi-squared distribution with `df` degrees of freedom, shifted by `loc` and scaled by `scale`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, df, loc=loc, scale=scale)


def _log_density(z: Array, df: Array) -> Array:
    return special.xlogy(0.5 * df - 1, 0.5 * z) - 0.5 * z - special.gammaln(0.5 * df)


_chi_squared = Distribution(
    "the chi-squared distribution",
    {
        "df": "the degrees of freedom.",
        "loc": "the lower end of the support.",
        "scale": "the scale.",
    },
    logpdf=_log_density,
    width=2,
    cdf=lambda z, df: special.gammainc(0.5 * df, 0.5 * jnp.maximum(z, 0)),
    sf=lambda z, df: special.gammaincc(0.5 * df, 0.5 * jnp.maximum(z, 0)),
    is_outside=lambda z, df: z < 0,
    inside=1,
    outside="below `loc`",
)

cdf = _chi_squared.function("cdf", _point, "1.5, 3.0", "0.3177")
logcdf = _chi_squared.function("logcdf", _point, "1.5, 3.0", "-1.1466")
logpdf = _chi_squared.function("logpdf", _point, "1.5, 3.0", "-1.4662")
logsf = _chi_squared.function("logsf", _point, "1.5, 3.0", "-0.3823")
pdf = _chi_squared.function("pdf", _point, "1.5, 3.0", "0.2308")
sf = _chi_squared.function("sf", _point, "1.5, 3.0", "0.6823")

publish(__name__)
