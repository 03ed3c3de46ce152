"""Results of decompositions: named tuples, and options of svd."""

import numpy as np

import shardwise.numpy as jnp
from tests.numpy.linalg.test_linalg import positive, real


def test_results_are_named_tuples():
    x = jnp.array(positive(3, 3))
    assert jnp.linalg.eigh(x)._fields == jnp.linalg.eig(x)._fields == ("eigenvalues", "eigenvectors")
    assert jnp.linalg.qr(x)._fields == ("Q", "R")
    assert jnp.linalg.svd(x)._fields == ("U", "S", "Vh")
    assert jnp.linalg.slogdet(x)._fields == ("sign", "logabsdet")


def test_hermitian_svd_reconstructs_the_matrix():
    x = np.array([[2, 1j], [-1j, -3]], np.complex64)
    u, s, vh = map(np.asarray, jnp.linalg.svd(jnp.array(x), hermitian=True))
    np.testing.assert_allclose(u * s @ vh, x, atol=1e-5)
    np.testing.assert_allclose(vh @ vh.conj().T, np.eye(2), atol=1e-5)


def test_svd_subset_is_a_slice_of_the_full_svd():
    x = jnp.array(real(4, 3))
    u, s, vh = jnp.linalg.svd(x, full_matrices=False)
    subset = jnp.linalg.svd(x, full_matrices=False, subset_by_index=(1, 3))
    for got, want in zip(subset, (u[:, 1:3], s[1:3], vh[1:3]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert jnp.linalg.svd(x, compute_uv=False, subset_by_index=(0, 1)).shape == (1,)
