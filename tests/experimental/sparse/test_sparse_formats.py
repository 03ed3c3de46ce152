"""BCSR, COO, CSR and CSC: conversions, products and arrays like scipy's and JAX's; `empty` and `eye`."""

import numpy as np
import pytest
import scipy.sparse

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO, BCSR, COO, CSC, CSR

X = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 4, 0]], np.float32)
V = np.arange(1, 5, dtype=np.float32)
MATVEC = {COO: sparse.coo_matvec, CSR: sparse.csr_matvec}
MATMAT = {COO: sparse.coo_matmat, CSR: sparse.csr_matmat}


@pytest.mark.parametrize(
    ("format_class", "scipy_class"), [(CSR, scipy.sparse.csr_matrix), (CSC, scipy.sparse.csc_matrix)]
)
def test_compressed_arrays_like_scipy(format_class, scipy_class):
    mat, expected = format_class.fromdense(X), scipy_class(X)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(mat, name), getattr(expected, name))
    assert repr(mat) == f"{format_class.__name__}(float32[3, 4], nse=4)"


@pytest.mark.parametrize("format_class", [BCOO, BCSR, COO, CSR, CSC])
def test_conversions_and_products(format_class):
    for nse in (None, 7):  # with and without padding
        mat = format_class.fromdense(X, nse=nse)
        assert mat.nse == (nse or 4) and mat.size == 12 and mat.ndim == 2 and len(mat) == 3
        np.testing.assert_array_equal(mat.todense(), X)
        np.testing.assert_array_equal(mat.to_bcoo().todense(), X)
        np.testing.assert_allclose(sw.jit(lambda m, v: m @ v)(mat, V), X @ V)
        np.testing.assert_allclose(mat @ X.T, X @ X.T)
        np.testing.assert_allclose(sw.jit(sw.vmap(lambda v, m=mat: m @ v))(X), X @ X.T)
    if format_class is not BCSR:
        np.testing.assert_array_equal(mat.T.todense(), X.T)
    under_jit = sw.jit(lambda x: format_class.fromdense(x, nse=5))(X)
    np.testing.assert_array_equal(under_jit.todense(), X)


@pytest.mark.parametrize("format_class", [COO, CSR])
def test_matvec_and_matmat(format_class):
    mat = format_class.fromdense(X)
    np.testing.assert_allclose(MATVEC[format_class](mat, V), X @ V)
    np.testing.assert_allclose(MATVEC[format_class](mat, V[:3], transpose=True), X.T @ V[:3])
    np.testing.assert_allclose(MATMAT[format_class](mat, X.T), X @ X.T)
    np.testing.assert_allclose(MATMAT[format_class](mat, X, transpose=True), X.T @ X)


def test_coo_arrays_are_sorted():
    mat = COO((jnp.array([1.0, 2.0]), jnp.array([2, 0]), jnp.array([0, 1])), shape=(3, 4))
    assert mat._sort_indices().row.tolist() == [0, 2]
    np.testing.assert_array_equal(sparse.coo_todense(mat), sparse.coo_todense(mat._sort_indices()))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "n_batch", "n_dense"), [((3, 4), 0, 0), ((2, 3, 4), 1, 0), ((3, 4, 2), 0, 1)])
@pytest.mark.jax
@pytest.mark.table(default=1)
def test_bcsr_like_jax(shape, n_batch, n_dense):
    pytest.importorskip("jax")
    peer = pytest.importorskip("jax.experimental.sparse")
    random = np.random.default_rng(0)
    x = (random.normal(size=shape) * (random.random(shape) < 0.4)).astype(np.float32)
    ours = BCSR.fromdense(x, n_batch=n_batch, n_dense=n_dense, nse=10)
    theirs = peer.BCSR.fromdense(x, n_batch=n_batch, n_dense=n_dense, nse=10)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    assert repr(ours) == repr(theirs)
    np.testing.assert_array_equal(ours.todense(), x)
    np.testing.assert_array_equal(
        sparse.bcsr_extract(ours.indices, ours.indptr, x), peer.bcsr_extract(theirs.indices, theirs.indptr, x)
    )
    for ours_after, theirs_after in (
        (sparse.bcsr_sum_duplicates(ours, nse=9), peer.bcsr_sum_duplicates(theirs, nse=9)),
        (
            sparse.bcsr_concatenate([ours, ours], dimension=n_batch),
            peer.bcsr_concatenate([theirs, theirs], dimension=n_batch),
        ),
        (
            sparse.bcsr_broadcast_in_dim(ours, shape=(2, *shape), broadcast_dimensions=range(1, len(shape) + 1)),
            peer.bcsr_broadcast_in_dim(theirs, shape=(2, *shape), broadcast_dimensions=range(1, len(shape) + 1)),
        ),
    ):
        assert repr(ours_after) == repr(theirs_after)
        np.testing.assert_array_equal(ours_after.todense(), theirs_after.todense())


def test_bcsr_products_indexing_and_scipy():
    mat = BCSR.from_scipy_sparse(scipy.sparse.csr_matrix(X))
    dims = (((1,), (0,)), ((), ()))
    np.testing.assert_allclose(sparse.bcsr_dot_general(mat, V, dimension_numbers=dims), X @ V)
    np.testing.assert_allclose(V[:3] @ mat, V[:3] @ X)
    np.testing.assert_array_equal(mat[2].todense(), X[2])
    np.testing.assert_array_equal([row.todense() for row in mat], X)
    assert mat.sum_duplicates(nse=6).nse == 6
    with pytest.raises(NotImplementedError, match="one operand must be dense"):
        sparse.bcsr_dot_general(mat, mat, dimension_numbers=dims)


@pytest.mark.parametrize("sparse_format", ["bcoo", "bcsr", "coo", "csr", "csc"])
@pytest.mark.parametrize("k", [-5, -1, 0, 1, 2])
def test_eye_and_empty(sparse_format, k):
    mat = sparse.eye(3, 4, k, sparse_format=sparse_format, dtype=np.int32)
    np.testing.assert_array_equal(mat.todense(), np.eye(3, 4, k))
    assert mat.nse == int(np.eye(3, 4, k).sum()) and mat.dtype == np.int32
    zeros = sparse.empty((3, 4), sparse_format=sparse_format)
    assert zeros.nse == 0 and not np.asarray(zeros.todense()).any() and zeros.dtype == np.float32


@pytest.mark.parametrize(("n_batch", "n_dense"), [(1, 0), (2, 0), (0, 1), (1, 1), (0, 2)])
def test_eye_with_batch_and_dense_dims(n_batch, n_dense):
    for k in (-1, 0, 2):
        mat = sparse.eye(3, 4, k, n_batch=n_batch, n_dense=n_dense)
        assert (mat.n_batch, mat.n_dense) == (n_batch, n_dense)
        np.testing.assert_array_equal(mat.todense(), np.eye(3, 4, k))
    assert sparse.empty((2, 3, 4), n_batch=1, nse=2).nse == 2
