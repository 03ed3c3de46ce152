"""Compare all distributions with JAX for the same keys; bits, integers and uniform floats must be equal."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import random
from tests.agreement import PARTS, Case, batch_name, batches, gradients_like, values_like

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

KEY = np.array([7, 99], np.uint32)
A = np.array([0.3, 1.0, 2.5, 40.0], np.float32)
P = np.array([0.05, 0.2, 0.35, 0.4], np.float32)
RATES = np.array([0, 0.5, 3, 9, 11, 200, 1e6, np.nan], np.float32)
TRIALS = np.array([0, 5, 100, 1000, 1e6, 7, np.inf, -1], np.float32)
PROBABILITIES = np.array([0.5, 0.3, 0.02, 0.7, 0.4, np.nan, 0.5, 0.5], np.float32)
GRID = np.arange(12, dtype=np.float32).reshape(3, 4)

EXACT = [
    Case("split", (KEY, 3)),
    Case("split", (KEY, (2, 3))),
    Case("fold_in", (KEY, 5)),
    Case("bits", (KEY, (3, 5))),
    *(Case("bits", (KEY, (7,), dtype)) for dtype in ("uint8", "uint16")),
    Case("uniform", (KEY, (7,))),
    Case("uniform", (KEY,)),
    Case("uniform", (KEY, 7)),
    Case("bernoulli", (KEY, 0.3, 8)),
    Case("uniform", (KEY, (0, 3))),
    Case("uniform", (KEY, (7,), "bfloat16")),
    Case("uniform", (KEY, (7,), "float16", -3, 0.5)),
    Case("uniform", (KEY, (3, 4)), {"minval": A, "maxval": 100}),
    Case("randint", (KEY, (9,), -5, 17)),
    Case("randint", (KEY, (9,), 0, 256, "uint8")),
    Case("randint", (KEY, (9,), -128, 128, "int8")),
    Case("randint", (KEY, (9,), 0, np.asarray(2**32 - 1, np.uint32), "uint32")),
    Case("randint", (KEY, (3, 4), np.arange(4), np.array([4, 3, 2, 9]))),
    Case("bernoulli", (KEY, 0.3, (8,))),
    Case("bernoulli", (KEY, P), {"mode": "high"}),
    Case("rademacher", (KEY, (5,))),
    Case("permutation", (KEY, 9)),
    Case("permutation", (KEY, GRID, 1)),
    Case("permutation", (KEY, GRID, 1), {"independent": True}),
    Case("permutation", (KEY, np.arange(3000))),
    Case("choice", (KEY, 9, (4,))),
    Case("choice", (KEY, GRID, (2, 2)), {"axis": 1}),
    Case("choice", (KEY, 9, (2, 2), False)),
    Case("choice", (KEY, 4, (5,)), {"p": P}),
    Case("choice", (KEY, A, (3,), False), {"p": P}),
    Case("categorical", (KEY, A), {"shape": (9,)}),
    Case("categorical", (KEY, GRID), {"axis": 0}),
    Case("categorical", (KEY, GRID / 9), {"axis": 1, "shape": (2, 3), "replace": False}),
    Case("categorical", (KEY, A), {"mode": "high"}),
    Case("poisson", (KEY, RATES)),
    Case("poisson", (KEY, 40.0, (50,))),
    Case("binomial", (KEY, TRIALS, PROBABILITIES)),
    Case("binomial", (KEY, 100, 0.45, (50,))),
    Case("geometric", (KEY, P)),
    Case("multinomial", (KEY, np.array([10, 1000]), np.stack([P, P[::-1]]))),
]

CLOSE = [
    Case("normal", (KEY, (9,))),
    Case("normal", (KEY, (9,), "complex64")),
    Case("normal", (KEY, (9,), "bfloat16")),
    Case("truncated_normal", (KEY, -1, A)),
    Case("lognormal", (KEY,), {"shape": (4,)}),
    Case("lognormal", (KEY, 0.5, (4,))),
    Case("maxwell", (KEY, (4,))),
    Case("double_sided_maxwell", (KEY, A, 2.0, (3,))),
    Case("wald", (KEY, A)),
    *(Case(name, (KEY, (5,))) for name in ("exponential", "laplace", "logistic", "cauchy", "gumbel")),
    *(Case("gumbel", (KEY, (50,)), {"mode": mode}) for mode in ("high", "highest")),
    Case("pareto", (KEY, A)),
    Case("rayleigh", (KEY, A)),
    Case("weibull_min", (KEY, 2.0, A, (4,))),
    Case("triangular", (KEY, 0.0, A / 2, A)),
    Case("gamma", (KEY, A, (3, 4))),
    Case("loggamma", (KEY, A)),
    Case("dirichlet", (KEY, A, (3,))),
    Case("multivariate_normal", (KEY, A[:2], np.array([[2, 0.5], [0.5, 1]], np.float32), (3,)), atol=1e-5),
    Case("orthogonal", (KEY, 2), {"m": 3}, atol=1e-5),
]

GAMMA_FUNCTIONS = [
    Case("beta", (KEY, A, 2.0)),
    Case("chisquare", (KEY, A)),
    Case("f", (KEY, A, 3.0)),
    Case("t", (KEY, A)),
    Case("generalized_normal", (KEY, 1.5, (4,))),
    Case("ball", (KEY, 3, 1.5, (4,))),
]

SMOOTH = [
    Case("uniform", (KEY, (4,)), {"minval": A, "maxval": A + 2}),
    Case("truncated_normal", (KEY, -A, A)),
    Case("gamma", (KEY, A), rtol=1e-4),
    Case("loggamma", (KEY, A), rtol=1e-4),
    Case("pareto", (KEY, A)),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(EXACT, 40), ids=batch_name)
def test_discrete_and_uniform_samples_equal_jax(cases):
    exact = [Case(case.name, case.args, case.keywords, rtol=0, atol=0, weak=False) for case in cases]
    values_like(random, jax.random, exact, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CLOSE, 40), ids=batch_name)
def test_continuous_samples_match_jax(cases):
    values_like(random, jax.random, cases, jax)


@pytest.mark.slow
@pytest.mark.table(default=1)
@PARTS
def test_functions_of_gamma_variates_match_jax(part):
    values_like(random, jax.random, GAMMA_FUNCTIONS[part], jax)


@pytest.mark.slow
@pytest.mark.table(default=1)
@PARTS
def test_gradients_match_jax(part):
    gradients_like(random, jax.random, SMOOTH[part], jax)


def test_keys_from_seeds_equal_jax():
    for seed in (0, 1, -1, 2**31 - 1, -(2**31), 2**32 + 5, np.int8(-3), np.uint32(2**32 - 1)):
        np.testing.assert_array_equal(random.PRNGKey(seed), jax.random.PRNGKey(seed))


def test_64_bit_types_match_jax():
    """With 64-bit types enabled: seeds of two words, and 64-bit samples."""

    def sample_all(r):
        return [
            r.PRNGKey(-5),
            r.PRNGKey(2**40 + 7),
            r.bits(KEY, (3,)),
            r.uniform(KEY, (3,)),
            r.normal(KEY, (3,)),
            r.randint(KEY, (5,), -(2**60), 2**61),
        ]

    before = sw.config.enable_x64
    jax_before = jax.config.jax_enable_x64
    sw.config.update("enable_x64", True)
    jax.config.update("jax_enable_x64", True)
    try:
        for ours, theirs in zip(sample_all(random), sample_all(jax.random), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-14)
    finally:
        sw.config.update("enable_x64", before)
        jax.config.update("jax_enable_x64", jax_before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_rejection_samplers_match_jax_for_many_keys(seed):
    """The number of iterations differs between keys.

    Without the rate 1e6: there, whether a sample is accepted depends on the rounding of logarithms near 1e7.
    """

    def sample_all(r):
        key = r.PRNGKey(seed)
        return [r.gamma(key, A, (50, 4)), r.poisson(key, RATES[:-2], (50, 6)), r.binomial(key, 60, P, (50, 4))]

    ours, theirs = sw.jit(lambda: sample_all(random))(), jax.jit(lambda: sample_all(jax.random))()
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_every_public_name_of_jax_exists():
    theirs = {name for name in dir(jax.random) if callable(getattr(jax.random, name)) and not name.startswith("_")}
    assert theirs - {"key_reuse"} <= set(random.__all__)
