"""Beta-binomial distribution: `n` trials whose success probability has the beta distribution with `a` and `b`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _outcome(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Arguments:
    return Arguments(k, n, a, b, loc=loc)


def _log_mass(k: Array, n: Array, a: Array, b: Array) -> Array:
    log_binomial = -jnp.log(n + 1) - special.betaln(k + 1, n - k + 1)
    return log_binomial + special.betaln(k + a, n - k + b) - special.betaln(a, b)


_betabinom = Distribution(
    "the beta-binomial distribution",
    {
        "n": "the number of trials.",
        "a, b": "the shape parameters of the beta distribution of the success probability.",
        "loc": "the shift of the distribution.",
    },
    logpmf=_log_mass,
    is_outside=lambda k, n, a, b: ~((k >= 0) & (k <= n)),
    outside="where `k - loc` is outside of 0 to `n`",
    is_valid=lambda n, a, b: (n >= 0) & (a > 0) & (b > 0),
    invalid="where a parameter is invalid",
)

logpmf = _betabinom.function("logpmf", _outcome, "2, 5, 1.0, 2.0", "-1.6582")
pmf = _betabinom.function("pmf", _outcome, "2, 5, 1.0, 2.0", "0.1905")

publish(__name__)
