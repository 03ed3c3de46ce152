"""scipy.stats: values against scipy, values, dtypes and gradients against JAX, on 8 devices as on one."""

import inspect
from types import ModuleType

import numpy as np
import pytest
import scipy.stats

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.scipy import stats
from tests.agreement import (
    Case,
    batch_name,
    batches,
    equal,
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


def _floats(*numbers):
    return np.array(numbers, np.float32)


ANY = _floats(-2.5, -0.8, 0.1, 0.7, 1.9, 3.2)
ABOVE = _floats(0.05, 0.4, 0.9, 1.6, 3.0, 7.5)
BEYOND = _floats(1.2, 1.7, 2.4, 3.0, 4.5, 9.0)
INSIDE = _floats(0.03, 0.2, 0.45, 0.6, 0.85, 0.97)
COUNTS = np.array([0, 1, 2, 3, 4, 5], np.int32)
SHAPE = _floats(0.6, 1.0, 1.5, 2.5, 4.0, 6.0)
PLACE, WIDTH = _floats(-0.3, -0.2, -0.1, 0.0, 0.02, 0.01), _floats(0.5, 0.8, 1.0, 1.1, 1.5, 2.0)

DENSITY = ("logpdf", "pdf")
SHARES = ("cdf", "logcdf", "logsf", "sf")
# Of each distribution the arguments of its functions of a place, and of those of a share.
AT = {
    "bernoulli": (np.array([0, 1, 1, 0, 1, 0], np.int32), INSIDE),
    "beta": (INSIDE, SHAPE, SHAPE[::-1].copy()),
    "betabinom": (COUNTS, np.int32(6) + COUNTS, SHAPE, SHAPE[::-1].copy()),
    "binom": (COUNTS, np.int32(6) + COUNTS, INSIDE),
    "cauchy": (ANY, PLACE, WIDTH),
    "chi2": (ABOVE, SHAPE, PLACE, WIDTH),
    "expon": (ABOVE, PLACE, WIDTH),
    "gamma": (ABOVE, SHAPE, PLACE, WIDTH),
    "gennorm": (ANY, SHAPE),
    "geom": (COUNTS + np.int32(1), INSIDE),
    "gumbel_l": (ANY, PLACE, WIDTH),
    "gumbel_r": (ANY, PLACE, WIDTH),
    "laplace": (ANY, PLACE, WIDTH),
    "logistic": (ANY, PLACE, WIDTH),
    "nbinom": (COUNTS, SHAPE, INSIDE),
    "norm": (ANY, PLACE, WIDTH),
    "pareto": (2 * BEYOND, SHAPE, PLACE, WIDTH),
    "poisson": (COUNTS, SHAPE),
    "t": (ANY, SHAPE, PLACE, WIDTH),
    "truncnorm": (INSIDE, -SHAPE, SHAPE[::-1].copy(), PLACE * np.float32(0.1), WIDTH),
    "uniform": (INSIDE * np.float32(0.4), PLACE, WIDTH),
    "vonmises": (ANY, SHAPE),
    "wrapcauchy": (BEYOND[:5] * np.float32(0.6), INSIDE[:5]),
}
FIXED_SHAPES = {"beta", "gennorm"}  # whose shares have no derivative along a parameter of shape


def _functions(name):
    return [f for f in getattr(stats, name).__all__ if f not in ("entropy", "ppf", "isf")]


def _cases():
    for name, args in AT.items():
        for f in _functions(name):
            smooth = (name, f) != ("poisson", "cdf") and not (name in FIXED_SHAPES and f in SHARES)
            extra = args[:2] if (name, f) == ("bernoulli", "cdf") else args
            smooth = smooth and not name.startswith("gumbel")  # of which JAX gives no gradients
            yield Case(f"{name}.{f}", extra, rtol=3e-5, atol=3e-6, weak=name != "truncnorm", smooth=smooth)
        for f in set(getattr(stats, name).__all__) & {"ppf", "isf"}:
            q = np.array([0.03, 0.2, 0.45, 0.6, 0.85, 0.97], np.float32)
            smooth = name not in ("bernoulli", "gumbel_l", "gumbel_r")
            yield Case(f"{name}.{f}", (q, *args[1:]), rtol=3e-5, atol=3e-6, smooth=smooth)
    yield Case("poisson.entropy", (_floats(0.0, 0.3, 2.0, 49.0, 51.0, 400.0),), rtol=3e-5, smooth=False)
    # Defaults, Python numbers and integers.
    for name, f, args in [("norm", "pdf", (1,)), ("expon", "cdf", (2,)), ("beta", "pdf", (0.5, 2, 3))]:
        yield Case(f"{name}.{f}", args)
    yield Case("norm.logpdf", (ANY,), {"scale": WIDTH})
    yield Case("gamma.logpdf", (ABOVE,), {"scale": 2.0, "a": SHAPE}, rtol=3e-5)


CASES = sorted(_cases(), key=lambda case: case.name)
_corners = np.array([[0.3, 0.7], [0.5, 0.5], [0.2, 0.8]], np.float32).T
_matrix = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.5]], np.float32)
_rows = np.array([[1.0, 0.2, -0.5], [0.3, -1.0, 2.0], [0.0, 0.1, 0.2], [1.5, 1.0, -1.0]], np.float32)
JOINT = [
    Case("dirichlet.logpdf", (_corners, _floats(1.5, 2.5)), smooth=False),
    Case("dirichlet.pdf", (_corners[:, 0], _floats(1.5, 2.5)), smooth=False),
    Case("dirichlet.logpdf", (_corners[:1], _floats(1.5, 2.5)), smooth=False),
    Case("multinomial.pmf", (np.array([1, 2, 3], np.int32), np.int32(5), _floats(0.2, 0.3, 0.5))),
    Case("multivariate_normal.logpdf", (_rows, _rows[0], _matrix)),
    Case("multivariate_normal.pdf", (_rows, _rows[0], _matrix)),
    Case("multivariate_normal.logpdf", (_rows[0], _rows[1], np.float32(2))),
]
ROWS = [  # as scipy alone has them
    Case("multinomial.logpmf", (np.array([[1, 2, 3], [3, 2, 1], [0, 0, 6]], np.int32), 6, _floats(0.2, 0.3, 0.5))),
]
BATCHED = [  # as JAX alone has them
    Case("multivariate_normal.logpdf", (_rows, 0.5, 2.0)),
    Case("multivariate_normal.logpdf", (_rows[0], _rows, np.stack([_matrix] * 4))),
    Case("multivariate_normal.logpdf", (_rows, _rows[::-1].copy(), _matrix)),
]
_sample = np.array([[3, 1, 3, 2, 1, 5], [2, 2, 2, 1, 0, 4], [7, 7, 1, 1, 3, 7]], np.int32)
_floating = _sample.astype(np.float32)
_holes = np.where(_sample == 5, np.nan, _floating).astype(np.float32)
SAMPLES = [
    *(Case("mode", (_sample,), {"axis": axis}) for axis in (0, 1, None)),
    Case("mode", (_floating,), {"axis": 1, "keepdims": True}),
    *(Case("rankdata", (_sample, method), {"axis": 1}) for method in ("average", "min", "max", "dense", "ordinal")),
    Case("rankdata", (_holes,), {"axis": 1}),
    Case("rankdata", (_floating,)),
    Case("sem", (_floating,)),
    Case("sem", (_holes, 1), {"nan_policy": "omit"}),
    Case("sem", (_sample, None, 0)),
]


@pytest.mark.parametrize("cases", batches([*CASES, *JOINT, *SAMPLES]), ids=batch_name)
def test_like_scipy_and_jax(cases):
    values_like_both(stats, cases, numpy=scipy.stats, theirs="scipy.stats")


def test_like_scipy_alone():
    values_like_numpy(stats, ROWS, scipy.stats)


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
def test_like_jax_alone():
    values_like(stats, jax.scipy.stats, BATCHED, jax)


def _is_log(case):
    return case.name.endswith(("logpdf", "logpmf"))


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@pytest.mark.parametrize("cases", batches([*filter(_is_log, [*CASES, *JOINT, *BATCHED])]), ids=batch_name)
def test_gradients_of_logarithms_like_jax(cases):
    gradients_like(stats, jax.scipy.stats, cases, jax)


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@pytest.mark.parametrize("cases", batches([case for case in CASES if not _is_log(case)]), ids=batch_name)
def test_gradients_like_jax(cases):
    gradients_like(stats, jax.scipy.stats, cases, jax)


@pytest.mark.parametrize("name", ["gumbel_l", "gumbel_r"])
def test_gradients_like_differences(name):
    x, step = ANY.astype(float), 1e-6
    for f in ("logpdf", "logcdf", "logsf"):
        slope = getattr(getattr(scipy.stats, name), f)
        wanted = (slope(x + step, -0.3, 1.5) - slope(x - step, -0.3, 1.5)) / (2 * step)
        found = sw.vmap(sw.grad(getattr(getattr(stats, name), f)), (0, None, None))(ANY, -0.3, 1.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, err_msg=f)


@pytest.mark.parametrize("cases", batches([*CASES[::12], *JOINT], 40), ids=batch_name)
def test_vmap_like_loop(cases):
    vmap_like_loop(stats, cases)


@pytest.mark.parametrize("which", ["first", "last"])
def test_on_a_mesh(which):
    mesh = sw.make_mesh((4, 2), ("x", "y"))
    mesh_like_one_device(mesh, stats, [*CASES[::9], *JOINT[::2], *SAMPLES[::3]], which)


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@pytest.mark.parametrize("name", stats.__all__)
def test_functions_and_signatures_are_those_of_jax(name):
    ours, theirs = getattr(stats, name), getattr(jax.scipy.stats, name)
    if not isinstance(ours, ModuleType):
        pairs = [(ours, theirs)]
    else:
        names = {f for f, value in vars(theirs).items() if inspect.isfunction(value) or hasattr(value, "lower")}
        assert set(ours.__all__) == {f for f in names if not f.startswith("_") and f in vars(scipy_like(name))}
        pairs = [(getattr(ours, f), getattr(theirs, f)) for f in ours.__all__]
    for mine, other in pairs:
        left, right = (inspect.signature(f).parameters.values() for f in (mine, other))
        assert [(p.name, p.kind, p.default) for p in left] == [(p.name, p.kind, p.default) for p in right]


def scipy_like(name):
    """What scipy's distribution of this name can do: what JAX's modules hold besides is imported."""
    return type("Names", (), {f: None for f in dir(getattr(scipy.stats, name))})


# Outside, at the ends and at what is no number: as scipy, whatever JAX does there.
EDGES = {
    "norm.logpdf": (_floats(np.inf, -np.inf, np.nan, 30.0),),
    "norm.logcdf": (_floats(np.inf, -np.inf, np.nan, -30.0, 12.0),),
    "norm.ppf": (_floats(0, 1, 1e-30, np.nan, -0.1, 1.1),),
    "norm.isf": (_floats(0, 1, 1e-30, np.nan),),
    "expon.logpdf": (_floats(-1, 0, np.inf, np.nan),),
    "expon.logcdf": (_floats(-1, 0, 1e-10, 50.0, np.nan),),
    "expon.sf": (_floats(-1, 0, 80.0, np.nan),),
    "expon.ppf": (_floats(0, 1, 1e-10, -0.1, 1.1),),
    "uniform.pdf": (_floats(-0.1, 0, 1, 1.1, np.nan),),
    "uniform.cdf": (_floats(-0.1, 0, 1, 1.1, np.nan),),
    "cauchy.cdf": (_floats(-1e8, 1e8, -np.inf, np.inf, np.nan),),
    "cauchy.sf": (_floats(-1e8, 1e8, -np.inf, np.inf, np.nan),),
    "cauchy.ppf": (_floats(0, 1, 0.5, 1e-12, 0.999, np.nan, 1.1),),
    "cauchy.isf": (_floats(0, 1, 0.5, 1e-12, 0.999, np.nan, 1.1),),
    "laplace.cdf": (_floats(-np.inf, -80, 0, np.inf, np.nan),),
    "logistic.logpdf": (_floats(-200, 0, 200, np.nan),),
    "gumbel_r.logsf": (_floats(-5, 0, 60, np.nan),),
    "gumbel_l.logcdf": (_floats(-60, 0, 5, np.nan),),
    "gamma.logpdf": (_floats(-1, 0, 0, 0, np.nan), _floats(2, 0.5, 1, 2, 1)),
    "gamma.cdf": (_floats(-1, 0, np.inf, np.nan), _floats(2, 0.5, 1, 1)),
    "beta.logpdf": (_floats(-0.1, 0, 0, 1, 1, 1.1, np.nan), _floats(2, 1, 2, 2, 2, 2, 2), _floats(2, 3, 3, 1, 2, 2, 2)),
    "beta.sf": (_floats(-0.1, 0, 1, 1.1), 2.0, 3.0),
    "pareto.logpdf": (_floats(0.5, 1, 1e20, np.nan), 1.5),
    "pareto.logcdf": (_floats(0.5, 1, 1e20, np.nan), 1.5),
    "pareto.ppf": (_floats(0, 1, -0.1, 1.1), 1.5),
    "t.logpdf": (_floats(0, 1e10, np.nan), _floats(1e8, 3, 1)),
    "truncnorm.logpdf": (_floats(0.5, 3.0, 10.5, np.nan), _floats(0, -1, 10, 0), _floats(1, 2, 12, 1)),
    "truncnorm.logcdf": (_floats(-30.5, 0, 10.5, 5.0), _floats(-31, 0, 10, -1), _floats(-30, 1, 12, 1)),
    "truncnorm.logsf": (_floats(-30.5, 0, 10.5, 5.0), _floats(-31, 0, 10, -1), _floats(-30, 1, 12, 1)),
    "bernoulli.logpmf": (np.array([0, 1, 2, -1, 1, 0], np.int32), _floats(0.3, 0.3, 0.3, 0.3, 1, 1)),
    "bernoulli.cdf": (_floats(-1, 0, 0.5, 1, 2), 0.3),
    "bernoulli.ppf": (_floats(0.1, 0.7, 0.71, 1, 1.1), 0.3),
    "binom.logpmf": (np.array([0, 5, 6, -1, 5], np.int32), 5, _floats(0, 1, 0.5, 0.5, 0.5)),
    "betabinom.logpmf": (np.array([0, 5, 6, -1, 1], np.int32), 5, _floats(1, 2, 1, 1, -1), 2.0),
    "nbinom.logpmf": (np.array([0, -1, 3], np.int32), 5, _floats(0.5, 0.5, 1)),
    "geom.logpmf": (np.array([0, 1, 1, 2], np.int32), _floats(0.5, 0.5, 1, 1)),
    "poisson.logpmf": (_floats(-1, 0, 1.5, 0), _floats(1, 1, 1, 0)),
    "poisson.cdf": (_floats(-1, 0, 1.5, 3), 2.0),
    "poisson.entropy": (_floats(-1, 0, np.nan),),
    "vonmises.pdf": (_floats(0, 3, 0), _floats(1e3, 1e3, -1)),
    "wrapcauchy.pdf": (_floats(0, 6.2, 1, 1), _floats(0.5, 0.5, 1, 0.9)),
}


def test_edges_like_scipy():
    values_like_numpy(stats, [Case(name, args, rtol=2e-5) for name, args in EDGES.items()], scipy.stats)


def test_slopes_outside_are_no_nan():
    """A branch that is not taken leaves no NaN behind."""
    logs = {"gamma": (-1.0, 2.0), "beta": (1.5, 2.0, 2.0), "pareto": (0.5, 2.0), "binom": (7.0, 5.0, 0.5)}
    for name, args in logs.items():
        f = getattr(getattr(stats, name), "logpmf" if name == "binom" else "logpdf")
        slopes = sw.grad(f, tuple(range(len(args))))(*args)
        assert all(np.isfinite(slope) for slope in slopes), name


def test_density_from_a_sample():
    data, weights = _rows.T, _floats(1, 2, 3, 1)
    points = np.array([[0.1, 0.9], [0.2, -0.5], [0.3, 0.1]], np.float32)
    for method in (None, "silverman", 0.7):
        ours = stats.gaussian_kde(data, method, weights)
        theirs = scipy.stats.gaussian_kde(data, method, weights)
        np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-5)
        np.testing.assert_allclose(ours.inv_cov, theirs.inv_cov, rtol=1e-4)
        np.testing.assert_allclose(ours(points), theirs(points), rtol=1e-4)
        np.testing.assert_allclose(ours.logpdf(points), theirs.logpdf(points), rtol=1e-4)
        mean, cov = _rows[0], _matrix
        np.testing.assert_allclose(ours.integrate_gaussian(mean, cov), theirs.integrate_gaussian(mean, cov), rtol=1e-4)
        np.testing.assert_allclose(ours.integrate_kde(ours), theirs.integrate_kde(theirs), rtol=1e-4)
    row = stats.gaussian_kde(data[0])
    wanted = scipy.stats.gaussian_kde(data[0]).integrate_box_1d(-1, 0.5)
    np.testing.assert_allclose(row.integrate_box_1d(-1, 0.5), wanted, rtol=1e-5)
    np.testing.assert_allclose(sw.jit(lambda kde, x: kde(x))(row, 0.5), row(0.5), rtol=1e-6)


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
def test_draws_from_a_density_are_those_of_jax():
    ours, theirs = (space.gaussian_kde(_rows.T) for space in (stats, jax.scipy.stats))
    for shape in ((), (3,)):
        mine, other = ours.resample(sw.random.key(3), shape), theirs.resample(jax.random.key(3), shape)
        equal(mine, other, Case("resample", rtol=1e-4, atol=1e-5))
    assert ours.resample(sw.random.key(3), (2, 5)).shape == (3, 2, 5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: stats.mode(_holes, nan_policy="omit"), "NaN is not left out"),
        (lambda: stats.mode(_holes, nan_policy="x"), "nan_policy must be 'propagate'"),
        (lambda: stats.rankdata(_holes, "x"), "method must be average"),
        (lambda: stats.sem(_holes, nan_policy="raise"), "nan_policy must be"),
        (lambda: stats.dirichlet.pdf(_corners, _matrix), "alpha must be a row"),
        (lambda: stats.dirichlet.pdf(_rows, _floats(1, 2)), "as many shares"),
        (lambda: stats.multinomial.pmf(_floats(1, 2), 3, _floats(0.5, 0.5)), "must be integers"),
        (lambda: stats.multivariate_normal.pdf(_rows, _rows[0], _rows[0]), "no covariance matrix"),
        (lambda: stats.multivariate_normal.logpdf(_rows, _rows[0], _matrix, allow_singular=True), "full rank"),
        (lambda: stats.gaussian_kde(1.0), "several columns"),
        (lambda: stats.gaussian_kde(_rows, "x"), "bw_method must be"),
        (lambda: stats.gaussian_kde(_rows)(_rows[:2]), "2 numbers each"),
        (lambda: stats.gaussian_kde(_rows).integrate_box(0, 1), "integrate_box_1d"),
        (lambda: stats.lognorm, "has no 'lognorm'"),
    ],
)
def test_errors(call, text):
    with pytest.raises((ValueError, NotImplementedError, AttributeError), match=text):
        call()


def test_nothing_to_count():
    found = stats.mode(jnp.zeros((0, 3)))
    assert found.mode.shape == (3,) and np.isnan(found.mode).all()
    assert stats.mode(jnp.zeros((0, 3)), keepdims=True).mode.shape == (1, 3)
    assert stats.rankdata(jnp.zeros((0,))).shape == (0,)
