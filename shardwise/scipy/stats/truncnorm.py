"""Normal distribution truncated to the interval from `loc + a * scale` to `loc + b * scale`."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats import norm
from shardwise.scipy.stats.distribution import Arguments, Distribution, log1mexp
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, a, b, loc=loc, scale=scale)


def _standard_logcdf(z: Array, a: Array, b: Array) -> Array:
    """Log cumulative distribution function of the standard normal distribution truncated to `a` to `b`."""
    in_support = (z > a) & (z < b)
    log_probability = _log_mass(a, jnp.where(in_support, z, b)) - _log_mass(a, b)
    return jnp.where(z <= a, -np.inf, jnp.where(z >= b, 0, log_probability))


def _log_mass(low: Array, high: Array) -> Array:
    """Log probability of the standard normal distribution between `low` and `high`, from its smaller tails."""
    is_right = low > 0  # mirrored, so that the interval is in the left half or contains 0
    near, far = jnp.where(is_right, -low, high), jnp.where(is_right, -high, low)
    one_tail = near <= 0
    upper = special.log_ndtr(jnp.where(one_tail, near, 0))
    log_ratio = upper - special.log_ndtr(jnp.where(one_tail, far, -1))
    both_tails = jnp.where(one_tail, 0, special.ndtr(far) + special.ndtr(-near))
    return jnp.where(one_tail, upper + log1mexp(jnp.where(log_ratio > 0, log_ratio, 1)), jnp.log1p(-both_tails))


_truncated_normal = Distribution(
    "the truncated normal distribution",
    {
        "a, b": "the bounds of the support, in standard deviations from `loc`.",
        "loc": "the mean before truncation.",
        "scale": "the standard deviation before truncation.",
    },
    logpdf=lambda z, a, b: norm.logpdf(z) - _log_mass(a, b),
    logcdf=_standard_logcdf,
    logsf=lambda z, a, b: _standard_logcdf(-z, -b, -a),
    is_outside=lambda z, a, b: (z < a) | (z > b),
    outside="outside of the support",
    is_valid=lambda a, b: a < b,
    invalid="unless `a < b`",
)

cdf = _truncated_normal.function("cdf", _point, "0.5, -1.0, 2.0", "0.6509")
logcdf = _truncated_normal.function(
    "logcdf", _point, "0.5, -1.0, 2.0", "-0.4294", note="It is accurate in the tails, where `cdf` underflows."
)
logpdf = _truncated_normal.function("logpdf", _point, "0.5, -1.0, 2.0", "-0.8438")
logsf = _truncated_normal.function(
    "logsf", _point, "0.5, -1.0, 2.0", "-1.0523", note="It is accurate in the tails, where `sf` underflows."
)
pdf = _truncated_normal.function("pdf", _point, "0.5, -1.0, 2.0", "0.4301")
sf = _truncated_normal.function("sf", _point, "0.5, -1.0, 2.0", "0.3491")

publish(__name__)
