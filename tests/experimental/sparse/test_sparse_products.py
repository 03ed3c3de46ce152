"""Compare sparse arrays with dense ones and with scipy: products, derivatives, transformations, shardings."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO
from shardwise.scipy.sparse.linalg import cg


def random_matrix(rows, columns, density=0.4, seed=0):
    return scipy.sparse.random(rows, columns, density, format="csr", dtype=np.float32, random_state=seed)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    density=st.floats(0, 1),
    shape=st.sampled_from([(), (3,), (2, 3), (2, 1, 2)]),
    seed=st.integers(0, 99),
)
def test_random_products(rows, columns, density, shape, seed):
    matrix = random_matrix(rows, columns, density, seed)
    dense, ours = matrix.toarray(), BCOO.from_scipy_sparse(matrix)
    assert (ours.shape, ours.nse, ours.dtype) == (dense.shape, matrix.nnz, dense.dtype)
    np.testing.assert_array_equal(ours.todense(), dense)
    right_shape = (*shape[:-1], columns, *shape[-1:])
    right = np.random.default_rng(seed).normal(size=right_shape).astype(np.float32)
    np.testing.assert_allclose(ours @ right, dense @ right, atol=1e-5)
    left = np.random.default_rng(seed).normal(size=(*shape, rows)).astype(np.float32)
    np.testing.assert_allclose(jnp.asarray(left) @ ours, left @ dense, atol=1e-5)
    np.testing.assert_array_equal(BCOO.fromdense(dense).todense(), dense)
    np.testing.assert_array_equal(ours.T.todense(), dense.T)


def test_coordinates_add_up_and_drop_outside():
    matrix = BCOO((jnp.array([1.0, 2.0, 4.0]), jnp.array([[0, 1], [0, 1], [2, 2]])), shape=(2, 2))
    np.testing.assert_array_equal(matrix.todense(), [[0, 3], [0, 0]])
    np.testing.assert_array_equal(matrix @ jnp.array([1.0, 10.0]), [30, 0])
    np.testing.assert_array_equal((2 * -matrix).todense(), [[0, -6], [0, 0]])
    np.testing.assert_array_equal(matrix.sum(axis=1).todense(), [3, 0])
    assert repr(matrix) == "BCOO(float32[2, 2], nse=3)"
    padded = sw.jit(lambda x: sparse.bcoo_fromdense(x, nse=5))(jnp.eye(3))
    assert padded.nse == 5
    np.testing.assert_array_equal(sparse.bcoo_todense(padded), np.eye(3))
    assert matrix.astype(np.int32).dtype == np.int32


def test_derivatives_vmap_and_jit():
    matrix = BCOO.from_scipy_sparse(random_matrix(5, 4))
    right = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)

    def loss(matrix, x):
        return jnp.sum(jnp.sin(matrix @ x))

    gradient, x_gradient = sw.jit(sw.grad(lambda data, x: loss(BCOO((data, matrix.indices), shape=(5, 4)), x), (0, 1)))(
        matrix.data, right[0]
    )
    expected, expected_x = sw.grad(loss, (0, 1))(matrix.todense(), right[0])
    np.testing.assert_allclose(gradient, expected[tuple(matrix.indices.T)], atol=1e-5)
    np.testing.assert_allclose(x_gradient, expected_x, atol=1e-5)
    np.testing.assert_allclose(
        sw.jit(sw.vmap(lambda x: matrix @ x))(right), right @ np.asarray(matrix.todense()).T, atol=1e-5
    )
    np.testing.assert_allclose(sw.jit(lambda m, x: m @ x)(matrix, right[0]), matrix @ right[0], atol=1e-6)


def test_sharded(mesh):
    """Elements and the dense operand are sharded over 8 devices; a Krylov solver accepts the matrix."""
    dense = random_matrix(16, 16, 0.3).toarray()
    dense = dense @ dense.T + 2 * np.eye(16, dtype=np.float32)
    matrix = BCOO.fromdense(dense)
    right = np.random.default_rng(1).normal(size=16).astype(np.float32)
    sharding = sw.NamedSharding(mesh, sw.P(("data", "model")))
    sharded = sw.device_put(right, sharding)
    np.testing.assert_allclose(sw.jit(lambda m, x: m @ x)(matrix, sharded), dense @ right, rtol=1e-4, atol=1e-4)
    solution, _ = sw.jit(lambda m, b: cg(m, b, tol=1e-6))(matrix, sharded)
    np.testing.assert_allclose(solution, np.linalg.solve(dense, right), atol=1e-3)


def test_products_from_the_left_transposes_and_sizes():
    dense = random_matrix(3, 4).toarray()
    matrix = BCOO(jnp.asarray(dense))
    assert (matrix.size, matrix.n_sparse, matrix.shape) == (12, 2, (3, 4))
    np.testing.assert_array_equal(matrix.T.todense(), dense.T)
    np.testing.assert_array_equal(matrix.transpose((0, -1)).todense(), dense)
    left = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(left[0] @ matrix, left[0] @ dense, rtol=1e-6)
    np.testing.assert_allclose(left @ matrix, left @ dense, rtol=1e-6)
    np.testing.assert_allclose(BCOO(jnp.arange(3.0)) @ np.ones(3, np.float32), 3)
