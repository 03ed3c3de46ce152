"""Calls of the functions of `shardwise.random`: their array parameters are sharded, or their samples."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardwise import random
from tests.layouts.call import Call, above_one, call, floats, integers, positive_definite, probabilities

WITHOUT_PARAMETERS = (
    *("ball", "bits", "cauchy", "exponential", "gumbel", "laplace", "logistic", "maxwell", "normal", "rademacher"),
    "uniform",
)
ONE_PARAMETER = ("chisquare", "gamma", "loggamma", "pareto", "poisson", "t", "wald", "rayleigh")
WITH_SUMS = {"ball", "orthogonal"}  # summed in another order when sharded; all other samples are equal bit by bit


def samplers(n: int) -> Iterator[Call]:
    key = random.key(7)
    loose = {"rtol": 1e-4, "atol": 1e-5}
    for name in WITHOUT_PARAMETERS:
        extra = (2, 2.0) if name == "ball" else ()
        sampler = getattr(random, name)
        yield call(f"random.{name}", lambda f=sampler, extra=extra: f(key, *extra, (n, n)), exact=name not in WITH_SUMS)
    for name in ONE_PARAMETER:
        sampler = getattr(random, name)
        # With an array parameter, which is sharded, and with a scalar, where the samples are.
        yield call(f"random.{name}", lambda x, f=sampler: f(key, x), above_one(n, n), exact=True)
        yield call(f"random.{name}", lambda f=sampler: f(key, 2.5, (n, n)), exact=True)
    two_parameters: dict[str, Any] = {
        "beta": lambda a, b: random.beta(key, a, b),
        "binomial": lambda a, b: random.binomial(key, (9 * a).round(), b / 5),
        "f": lambda a, b: random.f(key, a, b),
        "truncated_normal": lambda a, b: random.truncated_normal(key, -a, b),
        "weibull_min": lambda a, b: random.weibull_min(key, a, b),
        "triangular": lambda a, b: random.triangular(key, -a, b - b, b),
        "double_sided_maxwell": lambda a, b: random.double_sided_maxwell(key, a[0], b[0], (n,)),
        "uniform": lambda a, b: random.uniform(key, (n, n), minval=a, maxval=a + b),
    }
    for name, function in two_parameters.items():
        yield call(f"random.{name}", function, above_one(n, n), above_one(n, n, seed=9), exact=True)
    without_arrays: dict[str, Any] = {
        "PRNGKey": lambda: random.PRNGKey(3),
        "bernoulli": lambda: random.bernoulli(key, 0.3, (n, n)),
        "choice": lambda: [random.choice(key, n, (n,)), random.choice(key, 3 * n, (n,), replace=False)],
        "generalized_normal": lambda: random.generalized_normal(key, 1.5, (n, n)),
        "key_data": lambda: random.key_data(random.split(key, n)),
        "lognormal": lambda: random.lognormal(key, 0.5, (n, n)),
        "orthogonal": lambda: random.orthogonal(key, n),
        "permutation": lambda: random.permutation(key, n),
        "randint": lambda: random.randint(key, (n, n), -5, 100),
        "split": lambda: random.key_data(random.split(key, (n, n))),
        "key": lambda: random.bits(random.key(5), (n, n)),
    }
    for name, function in without_arrays.items():
        yield call(f"random.{name}", function, exact=name not in WITH_SUMS, **loose)
    x = floats(n, n)
    yield call("random.bernoulli", lambda p: random.bernoulli(key, p), probabilities(n, n))
    yield call("random.categorical", lambda x: [random.categorical(key, x, axis) for axis in (0, 1)], x)
    yield call("random.choice", lambda x: [random.choice(key, x, (n,), axis=axis) for axis in (0, 1)], x, exact=True)
    yield call("random.dirichlet", lambda a: random.dirichlet(key, a), above_one(n, n), **loose)
    yield call("random.geometric", lambda p: random.geometric(key, p), probabilities(n, n))
    yield call(
        "random.multinomial",
        lambda c, p: random.multinomial(key, c, p / p.sum(-1, keepdims=True)),
        *multinomial_arguments(n),
    )
    yield call(
        "random.multivariate_normal",
        lambda mean, covariance: random.multivariate_normal(key, mean, covariance, (n,)),
        x[0],
        positive_definite(n, n),
        rtol=1e-3,
        atol=1e-3,
    )
    yield call(
        "random.permutation",
        lambda x: [
            random.permutation(key, x, axis, independent=independent)
            for axis in (0, 1)
            for independent in (False, True)
        ],
        x,
        exact=True,
    )
    yield call("random.randint", lambda low: random.randint(key, (n, n), low, low + 20), integers(n, n))
    words = integers(n, n, 2, low=0, high=2**31 - 1, dtype=np.uint32)
    yield call("random.wrap_key_data", lambda words: random.key_data(random.wrap_key_data(words)), words)
    yield call("random.clone", lambda words: random.key_data(random.clone(random.wrap_key_data(words))), words)
    yield call(
        "random.fold_in",
        lambda words: random.key_data(random.fold_in(random.wrap_key_data(words[0, 0]), words[0, 0, 1])),
        words,
    )
    yield call(
        "random.key_impl", lambda w: np.array(len(str(random.key_impl(random.wrap_key_data(w))))), words, compiled=False
    )


def multinomial_arguments(n: int) -> tuple[Any, Any]:
    return integers(n, low=3, high=40).astype(np.float32), probabilities(n, n)


FAMILIES = (samplers,)
