"""scipy.stats on arrays that may lie on many devices: distributions, and what samples say of themselves.

A distribution is a module of functions: of densities, chances and shares, most with a logarithm of their own. All work
on each element alone, with parameters that broadcast, so that an array that is cut stays where it is.
"""

from typing import NoReturn

from shardwise.errors import not_here
from shardwise.scipy.stats import (
    bernoulli,
    beta,
    betabinom,
    binom,
    cauchy,
    chi2,
    dirichlet,
    expon,
    gamma,
    gennorm,
    geom,
    gumbel_l,
    gumbel_r,
    laplace,
    logistic,
    multinomial,
    multivariate_normal,
    nbinom,
    norm,
    pareto,
    poisson,
    t,
    truncnorm,
    uniform,
    vonmises,
    wrapcauchy,
)
from shardwise.scipy.stats.kde import gaussian_kde
from shardwise.scipy.stats.samples import mode, rankdata, sem

__all__ = [
    "bernoulli",
    "beta",
    "betabinom",
    "binom",
    "cauchy",
    "chi2",
    "dirichlet",
    "expon",
    "gamma",
    "gaussian_kde",
    "gennorm",
    "geom",
    "gumbel_l",
    "gumbel_r",
    "laplace",
    "logistic",
    "mode",
    "multinomial",
    "multivariate_normal",
    "nbinom",
    "norm",
    "pareto",
    "poisson",
    "rankdata",
    "sem",
    "t",
    "truncnorm",
    "uniform",
    "vonmises",
    "wrapcauchy",
]


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.scipy.stats", name, __all__)
