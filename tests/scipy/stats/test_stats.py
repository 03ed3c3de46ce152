"""Compare scipy.stats with scipy (values), with JAX (values, dtypes, gradients), and 8 devices with one."""

import inspect
from types import ModuleType

import numpy as np
import pytest
import scipy.stats

import shardwise as sw
from shardwise.scipy import stats
from tests.agreement import (
    PARTS,
    Case,
    batch_name,
    batches,
    gradients_like,
    mesh_like_one_device,
    values_like,
    values_like_both,
    values_like_numpy,
    vmap_like_loop,
)

try:
    import jax
except ImportError:
    jax = None


def floats(*numbers):
    return np.array(numbers, np.float32)


ANY = floats(-2.5, -0.8, 0.1, 0.7, 1.9, 3.2)
POSITIVE = floats(0.05, 0.4, 0.9, 1.6, 3.0, 7.5)
ABOVE_ONE = floats(1.2, 1.7, 2.4, 3.0, 4.5, 9.0)
PROBABILITIES = floats(0.03, 0.2, 0.45, 0.6, 0.85, 0.97)
COUNTS = np.array([0, 1, 2, 3, 4, 5], np.int32)
SHAPE = floats(0.6, 1.0, 1.5, 2.5, 4.0, 6.0)
LOC, SCALE = floats(-0.3, -0.2, -0.1, 0.0, 0.02, 0.01), floats(0.5, 0.8, 1.0, 1.1, 1.5, 2.0)

CUMULATIVE = ("cdf", "logcdf", "logsf", "sf")
# The arguments of the functions of each distribution; `ppf` and `isf` replace the first one by probabilities.
AT = {
    "bernoulli": (np.array([0, 1, 1, 0, 1, 0], np.int32), PROBABILITIES),
    "beta": (PROBABILITIES, SHAPE, SHAPE[::-1].copy()),
    "betabinom": (COUNTS, np.int32(6) + COUNTS, SHAPE, SHAPE[::-1].copy()),
    "binom": (COUNTS, np.int32(6) + COUNTS, PROBABILITIES),
    "cauchy": (ANY, LOC, SCALE),
    "chi2": (POSITIVE, SHAPE, LOC, SCALE),
    "expon": (POSITIVE, LOC, SCALE),
    "gamma": (POSITIVE, SHAPE, LOC, SCALE),
    "gennorm": (ANY, SHAPE),
    "geom": (COUNTS + np.int32(1), PROBABILITIES),
    "gumbel_l": (ANY, LOC, SCALE),
    "gumbel_r": (ANY, LOC, SCALE),
    "laplace": (ANY, LOC, SCALE),
    "logistic": (ANY, LOC, SCALE),
    "nbinom": (COUNTS, SHAPE, PROBABILITIES),
    "norm": (ANY, LOC, SCALE),
    "pareto": (2 * ABOVE_ONE, SHAPE, LOC, SCALE),
    "poisson": (COUNTS, SHAPE),
    "t": (ANY, SHAPE, LOC, SCALE),
    "truncnorm": (PROBABILITIES, -SHAPE, SHAPE[::-1].copy(), LOC * np.float32(0.1), SCALE),
    "uniform": (PROBABILITIES * np.float32(0.4), LOC, SCALE),
    "vonmises": (ANY, SHAPE),
    "wrapcauchy": (ABOVE_ONE[:5] * np.float32(0.6), PROBABILITIES[:5]),
}
FIXED_SHAPES = {"beta", "gennorm"}  # their cumulative functions are not differentiated with respect to shape parameters


def _functions(name):
    return [f for f in getattr(stats, name).__all__ if f not in ("entropy", "ppf", "isf")]


def _cases():
    for name, args in AT.items():
        for f in _functions(name):
            smooth = (name, f) != ("poisson", "cdf") and not (name in FIXED_SHAPES and f in CUMULATIVE)
            f_args = args[:2] if (name, f) == ("bernoulli", "cdf") else args
            smooth = smooth and not name.startswith("gumbel")  # JAX has no gradients of these
            yield Case(f"{name}.{f}", f_args, rtol=3e-5, atol=3e-6, weak=name != "truncnorm", smooth=smooth)
        for f in set(getattr(stats, name).__all__) & {"ppf", "isf"}:
            q = np.array([0.03, 0.2, 0.45, 0.6, 0.85, 0.97], np.float32)
            smooth = name not in ("bernoulli", "gumbel_l", "gumbel_r")
            yield Case(f"{name}.{f}", (q, *args[1:]), rtol=3e-5, atol=3e-6, smooth=smooth)
    yield Case("poisson.entropy", (floats(0.0, 0.3, 2.0, 49.0, 51.0, 400.0),), rtol=3e-5, smooth=False)
    # Defaults, Python numbers and integers.
    for name, f, args in [("norm", "pdf", (1,)), ("expon", "cdf", (2,)), ("beta", "pdf", (0.5, 2, 3))]:
        yield Case(f"{name}.{f}", args)
    yield Case("norm.logpdf", (ANY,), {"scale": SCALE})
    yield Case("gamma.logpdf", (POSITIVE,), {"scale": 2.0, "a": SHAPE}, rtol=3e-5)


CASES = sorted(_cases(), key=lambda case: case.name)
_simplex_points = np.array([[0.3, 0.7], [0.5, 0.5], [0.2, 0.8]], np.float32).T
MATRIX = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.5]], np.float32)
ROWS = np.array([[1.0, 0.2, -0.5], [0.3, -1.0, 2.0], [0.0, 0.1, 0.2], [1.5, 1.0, -1.0]], np.float32)
MULTIVARIATE = [
    Case("dirichlet.logpdf", (_simplex_points, floats(1.5, 2.5)), smooth=False),
    Case("dirichlet.pdf", (_simplex_points[:, 0], floats(1.5, 2.5)), smooth=False),
    Case("dirichlet.logpdf", (_simplex_points[:1], floats(1.5, 2.5)), smooth=False),
    Case("multinomial.pmf", (np.array([1, 2, 3], np.int32), np.int32(5), floats(0.2, 0.3, 0.5))),
    Case("multivariate_normal.logpdf", (ROWS, ROWS[0], MATRIX)),
    Case("multivariate_normal.pdf", (ROWS, ROWS[0], MATRIX)),
    Case("multivariate_normal.logpdf", (ROWS[0], ROWS[1], np.float32(2))),
]
SCIPY_ONLY = [
    Case("multinomial.logpmf", (np.array([[1, 2, 3], [3, 2, 1], [0, 0, 6]], np.int32), 6, floats(0.2, 0.3, 0.5))),
]
JAX_ONLY = [
    Case("multivariate_normal.logpdf", (ROWS, 0.5, 2.0)),
    Case("multivariate_normal.logpdf", (ROWS[0], ROWS, np.stack([MATRIX] * 4))),
    Case("multivariate_normal.logpdf", (ROWS, ROWS[::-1].copy(), MATRIX)),
]
_sample = np.array([[3, 1, 3, 2, 1, 5], [2, 2, 2, 1, 0, 4], [7, 7, 1, 1, 3, 7]], np.int32)
_float_sample = _sample.astype(np.float32)
_sample_with_nan = np.where(_sample == 5, np.nan, _float_sample).astype(np.float32)
SAMPLES = [
    *(Case("mode", (_sample,), {"axis": axis}) for axis in (0, 1, None)),
    Case("mode", (_float_sample,), {"axis": 1, "keepdims": True}),
    *(Case("rankdata", (_sample, method), {"axis": 1}) for method in ("average", "min", "max", "dense", "ordinal")),
    Case("rankdata", (_sample_with_nan,), {"axis": 1}),
    Case("rankdata", (_float_sample,)),
    Case("sem", (_float_sample,)),
    Case("sem", (_sample_with_nan, 1), {"nan_policy": "omit"}),
    Case("sem", (_sample, None, 0)),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([*CASES, *MULTIVARIATE, *SAMPLES]), ids=batch_name)
def test_values_equal_those_of_scipy_and_jax(cases):
    values_like_both(stats, cases, numpy=scipy.stats, theirs="scipy.stats")


@pytest.mark.table(default=1)
@PARTS
def test_scipy_only_cases_equal_scipy(part):
    values_like_numpy(stats, SCIPY_ONLY[part], scipy.stats)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@PARTS
def test_jax_only_cases_equal_jax(part):
    values_like(stats, jax.scipy.stats, JAX_ONLY[part], jax)


def _is_log(case):
    return case.name.endswith(("logpdf", "logpmf"))


@pytest.mark.slow
@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@pytest.mark.parametrize("cases", batches([*filter(_is_log, [*CASES, *MULTIVARIATE, *JAX_ONLY])]), ids=batch_name)
def test_gradients_of_log_densities_equal_those_of_jax(cases):
    gradients_like(stats, jax.scipy.stats, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@pytest.mark.parametrize("cases", batches([case for case in CASES if not _is_log(case)]), ids=batch_name)
def test_gradients_equal_those_of_jax(cases):
    gradients_like(stats, jax.scipy.stats, cases, jax)


@pytest.mark.parametrize("name", ["gumbel_l", "gumbel_r"])
def test_gradients_equal_finite_differences(name):
    x, step = ANY.astype(float), 1e-6
    for f in ("logpdf", "logcdf", "logsf"):
        reference = getattr(getattr(scipy.stats, name), f)
        expected = (reference(x + step, -0.3, 1.5) - reference(x - step, -0.3, 1.5)) / (2 * step)
        gradient = sw.vmap(sw.grad(getattr(getattr(stats, name), f)), (0, None, None))(ANY, -0.3, 1.5)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, err_msg=f)


@pytest.mark.slow
@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([*CASES[::12], *MULTIVARIATE], 40), ids=batch_name)
def test_vmap_equals_a_loop(cases):
    vmap_like_loop(stats, cases)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_results_on_a_mesh_equal_those_on_one_device(which, part):
    mesh = sw.make_mesh((4, 2), ("x", "y"))
    mesh_like_one_device(mesh, stats, [*CASES[::9], *MULTIVARIATE[::2], *SAMPLES[::3]][part], which)


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@pytest.mark.parametrize("name", stats.__all__)
def test_functions_and_signatures_equal_those_of_jax(name):
    ours, theirs = getattr(stats, name), getattr(jax.scipy.stats, name)
    if not isinstance(ours, ModuleType):
        pairs = [(ours, theirs)]
    else:
        names = {f for f, value in vars(theirs).items() if inspect.isfunction(value) or hasattr(value, "lower")}
        assert set(ours.__all__) == {f for f in names if not f.startswith("_") and f in scipy_names(name)}
        pairs = [(getattr(ours, f), getattr(theirs, f)) for f in ours.__all__]
    for mine, other in pairs:
        left, right = (inspect.signature(f).parameters.values() for f in (mine, other))
        assert [(p.name, p.kind, p.default) for p in left] == [(p.name, p.kind, p.default) for p in right]


def scipy_names(name):
    """Return the attributes of scipy's distribution of this name; all other functions in JAX's module are imports."""
    return dir(getattr(scipy.stats, name))


# Arguments outside of the support, at its ends, infinite and NaN. The reference is scipy; JAX may differ there.
EDGES = {
    "norm.logpdf": (floats(np.inf, -np.inf, np.nan, 30.0),),
    "norm.logcdf": (floats(np.inf, -np.inf, np.nan, -30.0, 12.0),),
    "norm.ppf": (floats(0, 1, 1e-30, np.nan, -0.1, 1.1),),
    "norm.isf": (floats(0, 1, 1e-30, np.nan),),
    "expon.logpdf": (floats(-1, 0, np.inf, np.nan),),
    "expon.logcdf": (floats(-1, 0, 1e-10, 50.0, np.nan),),
    "expon.sf": (floats(-1, 0, 80.0, np.nan),),
    "expon.ppf": (floats(0, 1, 1e-10, -0.1, 1.1),),
    "uniform.pdf": (floats(-0.1, 0, 1, 1.1, np.nan),),
    "uniform.cdf": (floats(-0.1, 0, 1, 1.1, np.nan),),
    "cauchy.cdf": (floats(-1e8, 1e8, -np.inf, np.inf, np.nan),),
    "cauchy.sf": (floats(-1e8, 1e8, -np.inf, np.inf, np.nan),),
    "cauchy.ppf": (floats(0, 1, 0.5, 1e-12, 0.999, np.nan, 1.1),),
    "cauchy.isf": (floats(0, 1, 0.5, 1e-12, 0.999, np.nan, 1.1),),
    "laplace.cdf": (floats(-np.inf, -80, 0, np.inf, np.nan),),
    "logistic.logpdf": (floats(-200, 0, 200, np.nan),),
    "gumbel_r.logsf": (floats(-5, 0, 60, np.nan),),
    "gumbel_l.logcdf": (floats(-60, 0, 5, np.nan),),
    "gamma.logpdf": (floats(-1, 0, 0, 0, np.nan), floats(2, 0.5, 1, 2, 1)),
    "gamma.cdf": (floats(-1, 0, np.inf, np.nan), floats(2, 0.5, 1, 1)),
    "beta.logpdf": (floats(-0.1, 0, 0, 1, 1, 1.1, np.nan), floats(2, 1, 2, 2, 2, 2, 2), floats(2, 3, 3, 1, 2, 2, 2)),
    "beta.sf": (floats(-0.1, 0, 1, 1.1), 2.0, 3.0),
    "pareto.logpdf": (floats(0.5, 1, 1e20, np.nan), 1.5),
    "pareto.logcdf": (floats(0.5, 1, 1e20, np.nan), 1.5),
    "pareto.ppf": (floats(0, 1, -0.1, 1.1), 1.5),
    "t.logpdf": (floats(0, 1e10, np.nan), floats(1e8, 3, 1)),
    "truncnorm.logpdf": (floats(0.5, 3.0, 10.5, np.nan), floats(0, -1, 10, 0), floats(1, 2, 12, 1)),
    "truncnorm.logcdf": (floats(-30.5, 0, 10.5, 5.0), floats(-31, 0, 10, -1), floats(-30, 1, 12, 1)),
    "truncnorm.logsf": (floats(-30.5, 0, 10.5, 5.0), floats(-31, 0, 10, -1), floats(-30, 1, 12, 1)),
    "bernoulli.logpmf": (np.array([0, 1, 2, -1, 1, 0], np.int32), floats(0.3, 0.3, 0.3, 0.3, 1, 1)),
    "bernoulli.cdf": (floats(-1, 0, 0.5, 1, 2), 0.3),
    "bernoulli.ppf": (floats(0.1, 0.7, 0.71, 1, 1.1), 0.3),
    "binom.logpmf": (np.array([0, 5, 6, -1, 5], np.int32), 5, floats(0, 1, 0.5, 0.5, 0.5)),
    "betabinom.logpmf": (np.array([0, 5, 6, -1, 1], np.int32), 5, floats(1, 2, 1, 1, -1), 2.0),
    "nbinom.logpmf": (np.array([0, -1, 3], np.int32), 5, floats(0.5, 0.5, 1)),
    "geom.logpmf": (np.array([0, 1, 1, 2], np.int32), floats(0.5, 0.5, 1, 1)),
    "poisson.logpmf": (floats(-1, 0, 1.5, 0), floats(1, 1, 1, 0)),
    "poisson.cdf": (floats(-1, 0, 1.5, 3), 2.0),
    "poisson.entropy": (floats(-1, 0, np.nan),),
    "vonmises.pdf": (floats(0, 3, 0), floats(1e3, 1e3, -1)),
    "wrapcauchy.pdf": (floats(0, 6.2, 1, 1), floats(0.5, 0.5, 1, 0.9)),
}


@pytest.mark.table(default=1)
@PARTS
def test_edge_cases_equal_scipy(part):
    values_like_numpy(stats, [Case(name, args, rtol=2e-5) for name, args in EDGES.items()][part], scipy.stats)


def test_gradients_outside_of_the_support_are_finite():
    """The branch of a `where` that is not selected must not contribute NaN to the gradient."""
    arguments = {"gamma": (-1.0, 2.0), "beta": (1.5, 2.0, 2.0), "pareto": (0.5, 2.0), "binom": (7.0, 5.0, 0.5)}
    for name, args in arguments.items():
        f = getattr(getattr(stats, name), "logpmf" if name == "binom" else "logpdf")
        gradients = sw.grad(f, tuple(range(len(args))))(*args)
        assert all(np.isfinite(gradient) for gradient in gradients), name


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: stats.mode(_sample_with_nan, nan_policy="omit"), "nan_policy='omit' is not supported"),
        (lambda: stats.mode(_sample_with_nan, nan_policy="x"), "nan_policy must be 'propagate'"),
        (lambda: stats.rankdata(_sample_with_nan, "x"), "method must be average"),
        (lambda: stats.sem(_sample_with_nan, nan_policy="raise"), "nan_policy must be"),
        (lambda: stats.dirichlet.pdf(_simplex_points, MATRIX), "alpha must have rank 1"),
        (lambda: stats.dirichlet.pdf(ROWS, floats(1, 2)), "the first axis of x must have the size of alpha"),
        (lambda: stats.multinomial.pmf(floats(1, 2), 3, floats(0.5, 0.5)), "must be integers"),
        (lambda: stats.multivariate_normal.pdf(ROWS, ROWS[0], ROWS[0]), "cov must be a scalar or a matrix"),
        (lambda: stats.multivariate_normal.logpdf(ROWS, ROWS[0], MATRIX, allow_singular=True), "full rank"),
        (lambda: stats.gaussian_kde(1.0), "at least two points"),
        (lambda: stats.gaussian_kde(ROWS, "x"), "bw_method must be"),
        (lambda: stats.gaussian_kde(ROWS)(ROWS[:2]), "the points have dimension 2"),
        (lambda: stats.gaussian_kde(ROWS).integrate_box(0, 1), "integrate_box_1d"),
        (lambda: stats.lognorm, "has no attribute 'lognorm'"),
    ],
)
def test_error_messages(call, text):
    with pytest.raises((ValueError, NotImplementedError, AttributeError), match=text):
        call()
