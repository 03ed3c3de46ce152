"""Compare the Krylov solvers with numpy's direct solver: values, derivatives, pytrees, preconditioners, shardings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.scipy.sparse.linalg import bicgstab, cg, gmres

SOLVERS = {
    "cg": cg,
    "bicgstab": bicgstab,
    "gmres": gmres,
    "gmres-incremental": lambda *args, **options: gmres(*args, solve_method="incremental", **options),
    "gmres-restarted": lambda *args, **options: gmres(*args, restart=4, **options),
}
VARIANTS = ("gmres-incremental", "gmres-restarted")
ANY_SOLVER = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in SOLVERS]
)


def system(name, size, dtype=np.float32, seed=0):
    """Return a matrix that the solver accepts, and a right-hand side."""
    random = np.random.default_rng((seed, size))
    matrix, right = random.normal(size=(size, size)), random.normal(size=size)
    if np.dtype(dtype).kind == "c":
        matrix, right = matrix + 1j * random.normal(size=(size, size)), right + 1j * random.normal(size=size)
    matrix = matrix @ matrix.conj().T / size + np.eye(size) if name == "cg" else matrix / size + 2 * np.eye(size)
    return matrix.astype(dtype), right.astype(dtype)


@pytest.mark.table(default=1)
@ANY_SOLVER
@settings(max_examples=3, deadline=None)
@given(size=st.integers(1, 9), seed=st.integers(0, 99), dtype=st.sampled_from([np.float32, np.complex64]))
def test_random_systems(name, size, seed, dtype):
    matrix, right = system(name, size, dtype, seed)
    solution, _ = SOLVERS[name](matrix, right, tol=1e-6)
    assert solution.dtype == dtype
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, right), atol=2e-4)


@pytest.mark.table(default=1)
@ANY_SOLVER
def test_functions_guesses_and_preconditioners(name):
    matrix, right = system(name, 7)
    expected = np.linalg.solve(matrix, right)
    inverse = np.linalg.inv(matrix + 0.05 * np.diag(np.arange(7)).astype(np.float32))
    for options in ({}, {"x0": expected + 1}, {"M": inverse}, {"M": lambda x: inverse @ x, "x0": right}):
        solution, _ = sw.jit(lambda b, options=options: SOLVERS[name](lambda x: matrix @ x, b, **options))(right)
        np.testing.assert_allclose(solution, expected, atol=2e-4)
    np.testing.assert_allclose(SOLVERS[name](matrix, right, x0=expected, maxiter=0)[0], expected)
    np.testing.assert_array_equal(SOLVERS[name](matrix, np.zeros(7, np.float32))[0], np.zeros(7))
    loose, _ = SOLVERS[name](matrix, right, atol=1e9)
    np.testing.assert_array_equal(loose, np.zeros(7))


@pytest.mark.table(default=1)
@ANY_SOLVER
def test_pytrees(name):
    matrix, right = system(name, 8)

    def split(x):
        return {"a": x[:2].reshape(1, 2), "b": [x[2:8]]}

    def matvec(tree):
        return split(matrix @ jnp.concatenate([tree["a"].ravel(), tree["b"][0]]))

    solution, _ = SOLVERS[name](matvec, split(right))
    expected = split(np.linalg.solve(matrix, right))
    assert sw.tree.structure(solution) == sw.tree.structure(expected)
    for x, y in zip(sw.tree.leaves(solution), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-4)


@pytest.mark.slow
@pytest.mark.table(default=1)
@ANY_SOLVER
def test_implicit_derivatives(name):
    """The gradients with respect to the matrix and the right-hand side are those of the direct solver."""
    matrix, right = system(name, 6)
    weights = np.cos(np.arange(6)).astype(np.float32)
    symmetrize = (lambda a: (a + a.T) / 2) if name == "cg" else (lambda a: a)

    def through(solve):
        return lambda a, b: jnp.sum(jnp.sin(solve(symmetrize(a), b) * weights))

    for transform in (lambda f: sw.grad(f, (0, 1)), lambda f: sw.jacfwd(f, (0, 1))):
        actual = sw.jit(transform(through(lambda a, b: SOLVERS[name](a, b, tol=1e-6)[0])))(matrix, right)
        expected = transform(through(jnp.linalg.solve))(matrix, right)
        for x, y in zip(actual, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-4)
    preconditioned = sw.grad(through(lambda a, b: SOLVERS[name](a, b, M=np.linalg.inv(matrix), tol=1e-6)[0]), 1)
    np.testing.assert_allclose(
        preconditioned(matrix, right), sw.grad(through(jnp.linalg.solve), 1)(matrix, right), atol=1e-4
    )


@pytest.mark.table(default=1)
@ANY_SOLVER
def test_vmap(name):
    matrices, rights = map(np.stack, zip(*[system(name, 5, seed=seed) for seed in range(3)], strict=True))
    solutions = sw.vmap(lambda a, b: SOLVERS[name](a, b)[0])(matrices, rights)
    for matrix, right, solution in zip(matrices, rights, solutions, strict=True):
        np.testing.assert_allclose(solution, np.linalg.solve(matrix, right), atol=2e-4)


@pytest.mark.table(default=1)
@ANY_SOLVER
def test_sharded(name, mesh):
    """The matrix and the unknown are sharded over 8 devices, evenly and not; derivatives too."""
    for size in (16, 10):
        matrix, right = system(name, size)

        def loss(a, b):
            x, _ = SOLVERS[name](a, b, tol=1e-6)
            return jnp.sum(jnp.sin(x)), x

        step = sw.jit(sw.value_and_grad(loss, (0, 1), has_aux=True))
        a = sw.device_put(matrix, sw.NamedSharding(mesh, sw.P("data", "model")))
        b = sw.device_put(right, sw.NamedSharding(mesh, sw.P(("data", "model"))))
        (_, solution), gradients = step(a, b)
        (_, alone), expected = step(matrix, right)
        np.testing.assert_allclose(solution, np.linalg.solve(matrix, right), atol=2e-4)
        np.testing.assert_allclose(solution, alone, atol=1e-4)
        for x, y in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-4)


@pytest.mark.table(default=1)
@pytest.mark.jax
@ANY_SOLVER
def test_like_jax(name):
    pytest.importorskip("jax")
    peer = pytest.importorskip("jax.scipy.sparse.linalg")
    function, _, variant = name.partition("-")
    options = {"": {}, "incremental": {"solve_method": "incremental"}, "restarted": {"restart": 4}}[variant]
    matrix, right = system(name, 9)
    solution, our_info = SOLVERS[name](matrix, right)
    expected, info = getattr(peer, function)(matrix, right, **options)
    assert (info is None) == (our_info is None) and (info is None or int(info) == int(our_info) == 0)
    np.testing.assert_allclose(solution, expected, atol=5e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b: cg(3, b), TypeError, "cg: A must be a function or a 2-D array, not int"),
        (lambda b: cg(jnp.ones((2, 3)), b), ValueError, r"A must be a square matrix, not of shape \(2, 3\)"),
        (lambda b: gmres(jnp.eye(3), b, M="M"), TypeError, "gmres: M must be a function"),
        (lambda b: bicgstab(jnp.eye(3), b, x0=jnp.ones(2)), ValueError, "x0 must have the structure and shapes of b"),
        (lambda b: bicgstab(jnp.eye(3), b, x0=[b]), ValueError, "x0 must have the structure and shapes of b"),
        (lambda b: cg(lambda x: x[:2], b), TypeError, "matvec must return"),
        (lambda b: gmres(jnp.eye(3), b, solve_method="all"), ValueError, "must be 'batched' or 'incremental'"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(jnp.ones(3))
