"""Derivatives with respect to sparse arrays, compared with those of dense arrays and with JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO, BCSR, COO, CSC, CSR
from shardwise.test_util import check_grads

X = np.array([[0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0]], np.float32)
V = np.arange(1, 5, dtype=np.float32)
PATTERN = X != 0


def loss(x, v):
    return jnp.sum(jnp.sin(x @ v))


@pytest.mark.parametrize("format_class", [BCOO, BCSR, COO, CSR, CSC])
def test_gradients_of_all_formats(format_class):
    mat = format_class.fromdense(X)
    value, (gradient, vector_gradient) = sw.jit(sparse.value_and_grad(loss, (0, 1)))(mat, V)
    expected_value, (expected, expected_vector) = sw.value_and_grad(loss, (0, 1))(X, V)
    assert isinstance(gradient, format_class) and gradient.shape == X.shape
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient.todense(), np.where(PATTERN, expected, 0), rtol=1e-5)
    np.testing.assert_allclose(vector_gradient, expected_vector, rtol=1e-5)
    only_sparse = sparse.grad(loss)(mat, V)
    np.testing.assert_allclose(only_sparse.data, gradient.data, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n_batch", [0, 1])
@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "jacobian"])
def test_jacobians(transform, n_batch):
    mat = BCOO.fromdense(X, n_batch=n_batch)
    result = getattr(sparse, transform)(lambda x: {"y": jnp.sin(x @ V)})(mat)["y"]
    expected = sw.jacrev(lambda x: jnp.sin(x @ V))(X)
    assert (result.shape, result.n_batch, result.nse) == ((3, 3, 4), 1 + n_batch, mat.nse)
    np.testing.assert_allclose(result.todense(), np.where(PATTERN, expected, 0), rtol=1e-5)


def test_auxiliary_results_and_pytrees():
    mat = BCOO.fromdense(X)
    params = {"mat": mat, "v": V}
    gradient, aux = sparse.grad(lambda p: (loss(p["mat"], p["v"]), p["mat"].nse), has_aux=True)(params)
    assert aux == 4 and isinstance(gradient["mat"], BCOO)
    np.testing.assert_allclose(gradient["v"], sw.grad(loss, 1)(X, V), rtol=1e-5)
    jacobian, aux = sparse.jacrev(lambda x: (x @ V, "aux"), has_aux=True)(mat)
    assert aux == "aux" and jacobian.shape == (3, 3, 4)


@pytest.mark.slow
def test_higher_derivatives_of_products():
    mat = BCOO.fromdense(X)
    check_grads(lambda data, v: mat.with_data(data) @ v, (mat.data, V), order=2)

    def gram_loss(product):
        return jnp.sin(product / 5).sum()

    def sparse_loss(data):
        x = mat.with_data(data)
        return gram_loss((x @ x.T).todense())

    def dense_loss(data):
        x = mat.with_data(data).todense()
        return gram_loss(x @ x.T)

    np.testing.assert_allclose(sw.hessian(sparse_loss)(mat.data), sw.hessian(dense_loss)(mat.data), atol=1e-5)


@pytest.mark.jax
def test_like_jax():
    pytest.importorskip("jax")
    peer = pytest.importorskip("jax.experimental.sparse")
    jax_numpy = pytest.importorskip("jax.numpy")
    for name in ("grad", "jacfwd", "jacrev"):
        ours = getattr(sparse, name)(lambda x: jnp.sum(x @ V))(BCOO.fromdense(X))
        theirs = getattr(peer, name)(lambda x: jax_numpy.sum(x @ V))(peer.BCOO.fromdense(X))
        assert repr(ours) == repr(theirs)
        np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-6)
