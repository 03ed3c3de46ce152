"""Batches in scipy.linalg, the SVD by QR iteration, and pseudo-inverses of thin matrices, compared with JAX."""

import numpy as np
import pytest
import scipy.linalg

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.scipy import linalg

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax
RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


SHAPES = [
    ((3,), None),
    ((2, 3), None),
    ((3,), (4,)),
    ((2, 3), (4,)),
    ((3,), (2, 4)),
    ((2, 1, 3), (5, 4)),
    ((0,), None),
    ((3,), (0,)),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toeplitz", "hankel"])
def test_toeplitz_and_hankel(name):
    for column, row in SHAPES:
        args = (normal(*column), None if row is None else normal(*row))
        ours, theirs = getattr(linalg, name)(*args), getattr(jax.scipy.linalg, name)(*args)
        np.testing.assert_array_equal(ours, theirs, err_msg=f"{column} {row}")
    with pytest.raises(TypeError, match=rf"{name}: shapes \(2,\) and \(3,\)"):
        getattr(linalg, name)(normal(2, 4), normal(3, 4))


def test_hankel_of_scalars_raises():
    with pytest.raises(ValueError, match=r"hankel: c and r must have a rank of at least 1, not f32\[\] and f32\[3\]"):
        linalg.hankel(np.float32(1), normal(3))


def test_solve_sylvester():
    a, b, c = normal(2, 3, 3), normal(4, 4) + 3 * np.eye(4, dtype=np.float32), normal(5, 1, 3, 4)
    ours, theirs = linalg.solve_sylvester(a, b, c), jax.scipy.linalg.solve_sylvester(a, b, c)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    np.testing.assert_allclose(a @ np.asarray(ours) + np.asarray(ours) @ b, np.broadcast_to(c, ours.shape), atol=1e-3)
    with pytest.raises(ValueError, match=r"solve_sylvester: A must have shape \(m, m\)"):
        linalg.solve_sylvester(a, b, c[..., :2])


@pytest.mark.slow
def test_rsf2csf():
    a = normal(2, 3, 4, 4)
    triangular, vectors = linalg.rsf2csf(*linalg.schur(a))
    theirs = jax.scipy.linalg.rsf2csf(*jax.scipy.linalg.schur(a))
    assert [x.shape for x in (triangular, vectors)] == [x.shape for x in theirs]
    assert not np.tril(triangular, -1).any()
    np.testing.assert_allclose(vectors @ triangular @ vectors.conj().mT, a, atol=1e-4)
    (one, _) = linalg.rsf2csf(*linalg.schur(a[1, 2]))
    np.testing.assert_allclose(triangular[1, 2], one, atol=1e-5)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("shape", [(2, 3, 3), (3, 2), (2, 3)])
@pytest.mark.parametrize("full", [True, False])
def test_svd_by_qr(shape, full):
    for x in (normal(*shape), normal(*shape) + 1j * normal(*shape)):
        ours = sw.lax.linalg.svd(x, full_matrices=full, algorithm=sw.lax.linalg.SvdAlgorithm.QR)
        theirs = jax.lax.linalg.svd(x, full_matrices=full, algorithm=jax.lax.linalg.SvdAlgorithm.QR)
        for y, z in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(y, z, atol=1e-5)


def test_svd_by_other_algorithms_raises():
    with pytest.raises(NotImplementedError, match=r"svd: SvdAlgorithm.JACOBI is not supported; use DIVIDE_AND_CONQUER"):
        sw.lax.linalg.svd(normal(3, 3), algorithm=sw.lax.linalg.SvdAlgorithm.JACOBI)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("shape", [(2, 400_000), (400_000, 2)])
def test_pinv_of_a_thin_matrix_forms_no_square(shape):
    """The square would need 640 GB."""
    x = normal(*shape)
    inverse, theirs = np.asarray(jnp.linalg.pinv(x)), np.asarray(jax.numpy.linalg.pinv(x))
    np.testing.assert_allclose(inverse, theirs, atol=1e-5 * np.abs(theirs).max())
    product = x @ inverse if shape[0] < shape[1] else inverse @ x
    # scipy's LAPACK computes the norms of 400,000 elements; on ARM, it adds their squares less accurately.
    thin = x if shape[0] > shape[1] else x.T
    norm = np.linalg.norm(thin[:, 0].astype(np.float64))
    lapack_error = abs(abs(scipy.linalg.qr(thin, mode="economic")[1][0, 0]) / norm - 1)
    np.testing.assert_allclose(product, np.eye(2), atol=1e-5 + 4 * lapack_error)
    assert sw.grad(lambda x: (jnp.linalg.pinv(x) ** 2).sum())(x).shape == shape


@pytest.mark.table(default=1)
@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (3, 3)])
def test_derivative_of_pinv(shape):
    x = normal(*shape) + 1j * normal(*shape)
    weights = normal(*shape[::-1])

    def gradient(m):
        return m.grad(lambda x: (abs(m.numpy.linalg.pinv(x)) ** 2 * weights).sum())(x)

    np.testing.assert_allclose(gradient(sw), gradient(jax), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "float16", "float32"])
def test_dtype_of_cumulative_sum(dtype):
    x = np.array([1, 0, 1], dtype)
    for call in (lambda m: m.cumulative_sum(x, include_initial=True), lambda m: m.cumulative_prod(x)):
        ours, theirs = call(jnp), call(jax.numpy)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_unique_of_empty_arrays(shape):
    x = np.zeros(shape, np.float32)
    for call in (
        lambda m: m.unique(x, return_index=True, return_inverse=True, return_counts=True),
        lambda m: m.unique(x, return_inverse=True, size=2, fill_value=0),
        lambda m: m.unique_all(x),
        lambda m: m.unique_inverse(x),
    ):
        ours, theirs = call(jnp), call(jax.numpy)
        assert [(y.shape, y.dtype) for y in ours] == [(y.shape, y.dtype) for y in theirs]
