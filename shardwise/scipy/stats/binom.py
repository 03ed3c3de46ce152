"""Binomial distribution: the number of successes in `n` trials with success probability `p`, shifted by `loc`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _outcome(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Arguments:
    return Arguments(k, n, p, loc=loc)


def _log_mass(k: Array, n: Array, p: Array) -> Array:
    log_binomial = -jnp.log(n + 1) - special.betaln(k + 1, n - k + 1)
    return log_binomial + special.xlogy(k, p) + special.xlog1py(n - k, -p)


_binomial = Distribution(
    "the binomial distribution",
    {
        "n": "the number of trials.",
        "p": "the success probability of a trial.",
        "loc": "the shift of the distribution.",
    },
    logpmf=_log_mass,
    is_outside=lambda k, n, p: ~((k >= 0) & (k <= n)),
    outside="where `k - loc` is outside of 0 to `n`",
)

logpmf = _binomial.function("logpmf", _outcome, "2, 5, 0.3", "-1.1754")
pmf = _binomial.function("pmf", _outcome, "2, 5, 0.3", "0.3087")

publish(__name__)
