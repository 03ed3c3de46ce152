"""Beta distribution with shape parameters `a` and `b` on the interval from `loc` to `loc + scale`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, a, b, loc=loc, scale=scale)


_beta = Distribution(
    "the beta distribution",
    {"a, b": "the shape parameters.", "loc": "the lower end of the support.", "scale": "the width of the support."},
    logpdf=lambda z, a, b: special.xlogy(a - 1, z) + special.xlog1py(b - 1, -z) - special.betaln(a, b),
    cdf=lambda z, a, b: special.betainc(a, b, jnp.clip(z, 0, 1)),
    sf=lambda z, a, b: special.betainc(b, a, 1 - jnp.clip(z, 0, 1)),
    is_outside=lambda z, a, b: (z < 0) | (z > 1),
    inside=0.5,
    outside="outside of the support",
)
_NOTE = "The result is not differentiable with respect to `a` and `b`."

cdf = _beta.function("cdf", _point, "0.25, 2.0, 3.0", "0.2617", note=_NOTE)
logcdf = _beta.function("logcdf", _point, "0.25, 2.0, 3.0", "-1.3405", note=_NOTE)
logpdf = _beta.function("logpdf", _point, "0.25, 2.0, 3.0", "0.5232")
logsf = _beta.function("logsf", _point, "0.25, 2.0, 3.0", "-0.3034", note=_NOTE)
pdf = _beta.function("pdf", _point, "0.25, 2.0, 3.0", "1.6875")
sf = _beta.function("sf", _point, "0.25, 2.0, 3.0", "0.7383", note=_NOTE)

publish(__name__)
