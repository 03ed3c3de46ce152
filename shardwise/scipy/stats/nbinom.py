"""Negative binomial distribution: the number of failures before the `n`-th success, shifted by `loc`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _outcome(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Arguments:
    return Arguments(k, n, p, loc=loc)


def _log_mass(k: Array, n: Array, p: Array) -> Array:
    log_binomial = -jnp.log(n + k) - special.betaln(k + 1, n)
    return log_binomial + special.xlogy(n, p) + special.xlog1py(k, -p)


_negative_binomial = Distribution(
    "the negative binomial distribution",
    {
        "n": "the number of successes.",
        "p": "the success probability of a trial.",
        "loc": "the shift of the distribution.",
    },
    logpmf=_log_mass,
    is_outside=lambda k, n, p: ~(k >= 0),
    outside="where `k` is below `loc`",
)

logpmf = _negative_binomial.function("logpmf", _outcome, "2, 5, 0.3", "-4.0252")
pmf = _negative_binomial.function("pmf", _outcome, "2, 5, 0.3", "0.0179")

publish(__name__)
