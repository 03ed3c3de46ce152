from shardwise.random.choice import categorical as categorical, choice as choice, permutation as permutation
from shardwise.random.continuous import (
    cauchy as cauchy,
    exponential as exponential,
    gumbel as gumbel,
    laplace as laplace,
    logistic as logistic,
    pareto as pareto,
    rayleigh as rayleigh,
    triangular as triangular,
    weibull_min as weibull_min,
)
from shardwise.random.discrete import (
    binomial as binomial,
    geometric as geometric,
    multinomial as multinomial,
    poisson as poisson,
)
from shardwise.random.gamma import (
    ball as ball,
    beta as beta,
    chisquare as chisquare,
    dirichlet as dirichlet,
    f as f,
    gamma as gamma,
    generalized_normal as generalized_normal,
    loggamma as loggamma,
    t as t,
)
from shardwise.random.keys import (
    Key as Key,
    PRNGKey as PRNGKey,
    clone as clone,
    fold_in as fold_in,
    key as key,
    key_data as key_data,
    key_dtype as key_dtype,
    key_impl as key_impl,
    split as split,
    wrap_key_data as wrap_key_data,
)
from shardwise.random.multivariate import multivariate_normal as multivariate_normal, orthogonal as orthogonal
from shardwise.random.normal import (
    double_sided_maxwell as double_sided_maxwell,
    lognormal as lognormal,
    maxwell as maxwell,
    normal as normal,
    truncated_normal as truncated_normal,
    wald as wald,
)
from shardwise.random.uniform import (
    bernoulli as bernoulli,
    bits as bits,
    rademacher as rademacher,
    randint as randint,
    uniform as uniform,
)
