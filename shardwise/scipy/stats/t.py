"""Student's t distribution with `df` degrees of freedom, shifted by `loc` and scaled by `scale`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _point(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Arguments:
    return Arguments(x, df, loc=loc, scale=scale)


def _log_density(z: Array, df: Array) -> Array:
    log_normalizer = -special.betaln(0.5 * df, 0.5) - 0.5 * jnp.log(df)
    return log_normalizer - 0.5 * (df + 1) * jnp.log1p(z * z / df)


_student = Distribution(
    "Student's t distribution",
    {"df": "the degrees of freedom.", "loc": "the location.", "scale": "the scale."},
    logpdf=_log_density,
)

logpdf = _student.function("logpdf", _point, "1.0, 4.0", "-1.5387")
pdf = _student.function("pdf", _point, "1.0, 4.0", "0.2147")

publish(__name__)
