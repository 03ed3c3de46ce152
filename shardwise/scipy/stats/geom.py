"""Geometric distribution: the number of trials up to the first success, each with success probability `p`."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.scipy import special
from shardwise.scipy.stats.distribution import Arguments, Distribution
from shardwise.typing import ArrayLike


def _outcome(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Arguments:
    return Arguments(k, p, loc=loc)


_geometric = Distribution(
    "the geometric distribution",
    {"p": "the success probability of a trial.", "loc": "the shift of the distribution."},
    logpmf=lambda k, p: special.xlog1py(k - 1, -p) + jnp.log(p),
    is_outside=lambda k, p: k < 1,
    inside=1,
    outside="where `k - loc` is below 1",
)

logpmf = _geometric.function("logpmf", _outcome, "2, 0.3", "-1.5606")
pmf = _geometric.function("pmf", _outcome, "2, 0.3", "0.2100")

publish(__name__)
