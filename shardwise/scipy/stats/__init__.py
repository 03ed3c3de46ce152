"""scipy.stats: probability distributions and statistics of samples, on sharded arrays too.

Each distribution is a module of functions such as `pdf`, `logpdf`, `cdf` and `ppf`. The univariate ones are
elementwise and broadcast their parameters, so sharded operands keep their sharding.
"""

from shardwise.base.lazy import set_public_names
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
from shardwise.scipy.stats.sample_statistics import mode, rankdata, sem

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


set_public_names(__name__, __all__)
