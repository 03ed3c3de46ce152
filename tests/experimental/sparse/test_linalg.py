"""Direct solutions of sparse systems, and the largest eigenvalues of matrices, compared with numpy."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental.sparse import BCOO, CSR
from shardwise.experimental.sparse.linalg import lobpcg_standard, spsolve
from shardwise.test_util import check_grads

RANDOM = np.random.default_rng(0)
A = (np.diag(RANDOM.uniform(4, 6, 8)) + RANDOM.normal(size=(8, 8)) * (RANDOM.random((8, 8)) < 0.3)).astype(np.float32)
B = RANDOM.normal(size=8).astype(np.float32)
MATRIX = CSR.fromdense(A)


@pytest.mark.parametrize("reorder", [0, 1])
def test_spsolve(reorder):
    arrays = (MATRIX.data, MATRIX.indices, MATRIX.indptr)
    np.testing.assert_allclose(spsolve(*arrays, B, reorder=reorder), np.linalg.solve(A, B), rtol=1e-4, atol=1e-5)
    solve = sw.jit(lambda data, b: spsolve(data, *arrays[1:], b, reorder=reorder))
    np.testing.assert_allclose(solve(arrays[0], B), np.linalg.solve(A, B), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_derivatives_and_vmap_of_spsolve():
    solve = lambda data, b: spsolve(data, MATRIX.indices, MATRIX.indptr, b)  # noqa: E731
    check_grads(solve, (MATRIX.data, B), order=1, rtol=1e-2, atol=1e-2)
    gradient = sw.grad(lambda data: solve(data, B).sum())(MATRIX.data)
    expected = sw.grad(lambda a: jnp.linalg.solve(a, B).sum())(A)
    np.testing.assert_allclose(gradient, expected[np.nonzero(A)], rtol=1e-3, atol=1e-5)
    right = np.stack([B, 2 * B])
    np.testing.assert_allclose(
        sw.vmap(solve, (None, 0))(MATRIX.data, right), np.linalg.solve(A, right.T).T, rtol=1e-4, atol=1e-5
    )


def test_singular_matrices_and_wrong_arguments():
    zeros = CSR.fromdense(np.zeros((2, 2), np.float32), nse=0)
    assert np.isnan(spsolve(zeros.data, zeros.indices, zeros.indptr, jnp.ones(2))).all()
    with pytest.raises(ValueError, match="must be a vector"):
        spsolve(MATRIX.data, MATRIX.indices, MATRIX.indptr, jnp.ones((8, 2)))
    with pytest.raises(ValueError, match="reorder must be 0, 1, 2 or 3, not 4"):
        spsolve(MATRIX.data, MATRIX.indices, MATRIX.indptr, B, reorder=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse", "function", "negative"])
def test_lobpcg(kind):
    size, count = 40, 3
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(size, size)))[0]
    values = np.linspace(1, 10, size) - (20 if kind == "negative" else 0)
    matrix = (basis * values @ basis.T).astype(np.float32)
    operator = {"sparse": BCOO.fromdense(matrix), "function": lambda x: matrix @ x}.get(kind, matrix)
    start = np.random.default_rng(2).normal(size=(size, count)).astype(np.float32)
    theta, vectors, iterations = sw.jit(lambda start: lobpcg_standard(operator, start, 200))(start)
    np.testing.assert_allclose(theta, values[::-1][:count], rtol=1e-3)
    np.testing.assert_allclose(matrix @ np.asarray(vectors), vectors * theta, atol=2e-2)
    np.testing.assert_allclose(np.asarray(vectors).T @ np.asarray(vectors), np.eye(count), atol=1e-4)
    assert 0 < int(iterations) <= 200
    assert int(lobpcg_standard(operator, start, 2)[2]) == 2


@pytest.mark.jax
def test_lobpcg_like_jax():
    pytest.importorskip("jax")
    peer = pytest.importorskip("jax.experimental.sparse.linalg")
    matrix = np.diag(np.arange(1.0, 31.0, dtype=np.float32))
    start = np.random.default_rng(2).normal(size=(30, 2)).astype(np.float32)
    ours, theirs = lobpcg_standard(matrix, start, 100), peer.lobpcg_standard(matrix, start, 100)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4)
    np.testing.assert_allclose(abs(np.asarray(ours[1])), abs(np.asarray(theirs[1])), atol=1e-2)


@pytest.mark.parametrize(
    ("matrix", "start", "message"),
    [
        (np.eye(8, dtype=np.float32), np.ones((8, 2), np.float32), r"needs 0 < 5 \* columns < rows"),
        (np.eye(8, dtype=np.float32), np.ones((8, 0), np.float32), r"needs 0 < 5 \* columns < rows"),
        (np.eye(9, dtype=np.float32), np.ones((8, 1), np.float32), r"A must have shape \(8, 8\)"),
        (np.eye(8, dtype=np.int32), np.ones((8, 1), np.float32), "dtype float32 like X"),
        (lambda x: x[:2], np.ones((8, 1), np.float32), "A must return an array like its argument"),
    ],
)
def test_wrong_arguments_of_lobpcg(matrix, start, message):
    with pytest.raises(ValueError, match=message):
        lobpcg_standard(matrix, jnp.asarray(start))
