"""Compare minimize with scipy's BFGS on known functions, under jit and vmap, and on 8 devices with one."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.scipy.optimize import OptimizeResults, minimize


def rosenbrock(np):
    return lambda x: np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def himmelblau(np):
    return lambda p: (p[0] ** 2 + p[1] - 11) ** 2 + (p[0] + p[1] ** 2 - 7) ** 2


def matyas(np):
    return lambda p: 0.26 * (p[0] ** 2 + p[1] ** 2) - 0.48 * p[0] * p[1]


def logcosh(np):
    return lambda x: np.sum(np.log(np.cosh(x - 0.5))) + 0.1 * np.sum(x**2)


def eggholder(np):
    return lambda p: (
        -(p[1] + 47) * np.sin(np.sqrt(np.abs(p[0] / 2 + p[1] + 47))) - p[0] * np.sin(np.sqrt(np.abs(p[0] - p[1] - 47)))
    )


CASES = [
    (rosenbrock, [0.0, 0.0]),
    (rosenbrock, [-1.2, 1.0, 0.5, 2.0]),
    (himmelblau, [1.0, 1.0]),
    (himmelblau, [-3.0, -3.0]),
    (matyas, [5.0, -2.0]),
    (logcosh, [3.0, -4.0, 0.1]),
    (eggholder, [100.0, 100.0]),
]


@pytest.mark.table(default=3)
@pytest.mark.parametrize(("function", "start"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_like_scipy(function, start):
    """In double precision, both end at the same minimum with a small gradient."""
    with sw.enable_x64(True):
        ours = sw.jit(lambda x: minimize(function(jnp), x, method="BFGS"))(np.array(start))
        theirs = scipy.optimize.minimize(function(np), np.array(start), method="BFGS")
        assert bool(ours.success) and int(ours.status) == 0
        assert float(jnp.abs(ours.jac).max()) < 1e-5
        np.testing.assert_allclose(ours.x, theirs.x, atol=2e-4)
        np.testing.assert_allclose(ours.fun, theirs.fun, atol=1e-7)
        assert int(ours.nit) <= 2 * theirs.nit + 5 and int(ours.nfev) == int(ours.njev) < 200


def test_inverse_hessian_of_a_quadratic():
    matrix = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
    with sw.enable_x64(True):
        result = minimize(lambda x: x @ matrix @ x / 2 - x.sum(), np.zeros(3), method="bfgs", tol=1e-10)
        np.testing.assert_allclose(result.x, np.linalg.solve(matrix, np.ones(3)), atol=1e-8)
        np.testing.assert_allclose(result.hess_inv, np.linalg.inv(matrix), atol=1e-3)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(1, 6))
def test_random_convex_functions(seed, size):
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(size, size))
    matrix = (matrix @ matrix.T + np.eye(size)).astype(np.float32)
    target, start = random.normal(size=(2, size)).astype(np.float32) * 3

    def loss(x, target):
        return jnp.sqrt(1 + (x - target) @ matrix @ (x - target))

    result = minimize(loss, start, (target,), method="BFGS", options={"gtol": 1e-3})
    assert bool(result.success)
    np.testing.assert_allclose(result.x, target, atol=5e-3)


def test_status():
    function = rosenbrock(jnp)
    limited = minimize(function, jnp.array([-1.2, 1.0]), method="BFGS", options={"maxiter": 3})
    assert (bool(limited.success), int(limited.status), int(limited.nit)) == (False, 1, 3)
    at_minimum = minimize(function, jnp.ones(2), method="BFGS")
    assert (bool(at_minimum.success), int(at_minimum.nit), int(at_minimum.nfev)) == (True, 0, 1)
    nowhere = minimize(lambda x: x.sum(), jnp.ones(2), method="BFGS", options={"line_search_maxiter": 4})
    assert (bool(nowhere.success), int(nowhere.status)) == (False, 5)
    assert isinstance(at_minimum, OptimizeResults)
    norm = minimize(function, jnp.zeros(2), method="BFGS", options={"gtol": 1e-2, "norm": 2})
    assert float(jnp.linalg.norm(norm.jac)) < 1e-2


@pytest.mark.slow
def test_vmap_and_forward_derivative():
    def minimizer(target):
        return minimize(lambda x: jnp.sum((x - target) ** 2), jnp.zeros(2), method="BFGS").x

    targets = np.array([[1.0, -2.0], [0.5, 4.0], [30.0, 2.0]], np.float32)
    np.testing.assert_allclose(sw.vmap(minimizer)(targets), targets, atol=1e-4)
    np.testing.assert_allclose(sw.jacfwd(minimizer)(targets[0]), np.eye(2), atol=1e-3)


def test_sharded(mesh):
    """A vector that is sharded over 8 devices, and a function of sharded data."""
    random = np.random.default_rng(0)
    data, target = random.normal(size=(32, 16)).astype(np.float32), random.normal(size=16).astype(np.float32)

    def fit(data, start):
        return minimize(lambda x: jnp.mean((data @ (x - target)) ** 2), start, method="BFGS", options={"gtol": 1e-4})

    one = sw.jit(fit)(data, np.zeros(16, np.float32))
    spec = sw.NamedSharding(mesh, sw.P(("data", "model")))
    sharded = sw.jit(fit)(
        sw.device_put(data, sw.NamedSharding(mesh, sw.P("data", "model"))),
        sw.device_put(np.zeros(16, np.float32), spec),
    )
    assert bool(one.success) and bool(sharded.success)
    np.testing.assert_allclose(sharded.x, target, atol=1e-3)
    np.testing.assert_allclose(sharded.x, one.x, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: minimize(jnp.sum, jnp.ones(2), method="Newton"), ValueError, "method must be 'BFGS', not 'Newton'"),
        (lambda: minimize(jnp.sum, jnp.ones((2, 2)), method="BFGS"), ValueError, "x0 must be a vector"),
        (lambda: minimize(jnp.sum, jnp.ones(2), 3, method="BFGS"), TypeError, "args must be a tuple"),
        (lambda: minimize(jnp.sum, jnp.ones(2), method="BFGS", options={"eps": 1}), ValueError, "no option 'eps'"),
        (lambda: minimize(lambda x: x, jnp.ones(2), method="BFGS"), TypeError, "scalar"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
