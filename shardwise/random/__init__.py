"""Random numbers from PRNG keys: the same bits as in JAX for the same key, whatever the sharding of the result."""

from shardwise.base.lazy import set_public_names
from shardwise.random.choice import categorical, choice, permutation
from shardwise.random.continuous import (
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    pareto,
    rayleigh,
    triangular,
    weibull_min,
)
from shardwise.random.discrete import binomial, geometric, multinomial, poisson
from shardwise.random.gamma import ball, beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t
from shardwise.random.keys import (
    PRNGKey,
    clone,
    fold_in,
    key,
    key_data,
    key_dtype,
    key_impl,
    split,
    wrap_key_data,
)
from shardwise.random.multivariate import multivariate_normal, orthogonal
from shardwise.random.normal import double_sided_maxwell, lognormal, maxwell, normal, truncated_normal, wald
from shardwise.random.uniform import bernoulli, bits, rademacher, randint, uniform

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]


set_public_names(__name__, __all__)
