"""lax.linalg: values and gradients against JAX, reconstruction of the matrices, vmap, meshes and errors."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from tests.agreement import Case, batch_name, batches, gradients_like, mesh_like_one_device, values_like, vmap_like_loop

RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def complex_(*shape):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(np.complex64)


def positive(*shape):
    x = real(*shape)
    return (x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])).astype(np.float32)


def dominant(*shape):
    return (real(*shape) + 4 * np.eye(shape[-1])).astype(np.float32)


def case(name, *args, smooth=True, **keywords):
    return Case(f"linalg.{name}", args, keywords, rtol=2e-4, atol=5e-5, weak=False, smooth=smooth)


CASES = [
    *(case("cholesky", positive(2, 3, 3), symmetrize_input=symmetrize) for symmetrize in (False, True)),
    case("cholesky_update", np.linalg.cholesky(positive(4, 4)).T.copy(), real(4), smooth=False),
    *(case("eig", x, smooth=False) for x in (real(3, 3), complex_(2, 3, 3))),
    case("eig", real(3, 3), compute_left_eigenvectors=False, compute_right_eigenvectors=False),
    case("eig", positive(3, 3), compute_left_eigenvectors=False, enable_eigvec_derivs=True, smooth=False),
    *(case("eigh", positive(2, 3, 3), lower=lower) for lower in (False, True)),
    case("eigh", complex_(3, 3), smooth=False),
    *(case("hessenberg", x, smooth=False) for x in (real(2, 4, 4), complex_(3, 3))),
    *(
        case("householder_product", x, y, smooth=False)
        for x, y in ((real(4, 3), real(3)), (complex_(4, 4), complex_(2)))
    ),
    *(case("lu", x) for x in (real(3, 3), real(2, 4, 3), real(3, 4), complex_(3, 3))),
    case("lu_pivots_to_permutation", np.array([[2, 2, 2], [0, 2, 3]], np.int32), 4),
    *(
        case("ormqr", real(4, 3), real(3), real(4, 2) if left else real(2, 4), left=left, transpose=back, smooth=False)
        for left in (False, True)
        for back in (False, True)
    ),
    case("ormqr", complex_(4, 3), complex_(3), complex_(4, 2), transpose=True, smooth=False),
    *(case("qr", x, full_matrices=full) for x in (real(4, 3), real(3, 4), complex_(4, 3)) for full in (False, True)),
    case("qr", real(4, 3), pivoting=True, full_matrices=False),
    case("qr", real(2, 3, 4), pivoting=True, full_matrices=False, smooth=False),  # JAX fails too
    *(case("qdwh", x, smooth=False) for x in (real(4, 4), real(6, 3), complex_(5, 4), np.eye(3, dtype=np.float32))),
    case("qdwh", real(4, 4), max_iterations=2, smooth=False),
    case("qdwh", real(6, 5), dynamic_shape=(4, 3), smooth=False),
    case("qdwh", np.zeros((3, 2), np.float32), smooth=False),
    *(case("schur", x, smooth=False) for x in (real(4, 4), complex_(3, 3))),
    case("schur", real(3, 3), compute_schur_vectors=False, smooth=False),
    *(case("svd", x, full_matrices=False) for x in (real(4, 3), real(2, 3, 4))),
    case("svd", real(4, 3), compute_uv=False),
    case("svd", complex_(4, 3), smooth=False),
    case(
        "symmetric_product", real(2, 3, 4), positive(2, 3, 3), alpha=2.0, beta=0.5, symmetrize_output=True, smooth=False
    ),
    *(case("triangular_solve", dominant(2, 3, 3), real(2, 4, 3), lower=lower) for lower in (False, True)),
    case("triangular_solve", dominant(2, 3, 3), real(2, 3), left_side=True, smooth=False),
    case("triangular_solve", complex_(3, 3), complex_(3, 2), left_side=True, transpose_a=True, conjugate_a=True),
    case("triangular_solve", complex_(3, 3), complex_(3, 2), left_side=True, conjugate_a=True, unit_diagonal=True),
    case("triangular_solve", dominant(3, 3).astype(np.float16), real(3, 1).astype(np.float16), left_side=True),
    *(case("tridiagonal", positive(2, 4, 4), lower=lower, smooth=False) for lower in (False, True)),
    case("tridiagonal_solve", real(4), real(4) + 6, real(4), real(4, 2)),
]


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_values_match_jax(cases):
    jax = pytest.importorskip("jax")
    values_like(lax, pytest.importorskip("jax.lax"), cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_gradients_match_jax(cases):
    jax = pytest.importorskip("jax")
    gradients_like(lax, pytest.importorskip("jax.lax"), cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_vmap_matches_loop(cases):
    vmap_like_loop(lax, cases)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_mesh_matches_one_device(mesh, cases, which):
    mesh_like_one_device(mesh, lax, cases, which)


def test_factors_reconstruct_the_matrix():
    """Check the definitions of the factorizations in one program, without JAX."""
    x, symmetric = real(4, 4), positive(4, 4)
    upper, vector = np.linalg.cholesky(symmetric).T.copy(), real(4)

    def run(x, symmetric):
        return {
            "lu": lax.linalg.lu(x),
            "qr": lax.linalg.qr(x, pivoting=True),
            "schur": lax.linalg.schur(x),
            "eig": lax.linalg.eig(x),
            "eigh": lax.linalg.eigh(symmetric),
            "subset": lax.linalg.eigh(symmetric, subset_by_index=(1, 3)),
            "update": lax.linalg.cholesky_update(upper, vector),
            "tridiagonal": lax.linalg.tridiagonal(symmetric),
            "qdwh": lax.linalg.qdwh(x * np.logspace(0, -5, 4, dtype=np.float32)),
        }

    results = sw.tree.map(np.asarray, sw.jit(run)(x, symmetric))
    packed, _, order = results["lu"]
    close = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose((np.tril(packed, -1) + np.eye(4)) @ np.triu(packed), x[order], **close)
    q, r, columns = results["qr"]
    np.testing.assert_allclose(q @ r, x[:, columns], **close)
    assert (np.diff(np.abs(np.diag(r))) <= 0).all()
    t, z = results["schur"]
    np.testing.assert_allclose(z @ t @ z.T, x, **close)
    values, left, right = results["eig"]
    np.testing.assert_allclose(x @ right, right * values, **close)
    np.testing.assert_allclose(left.conj().T @ x, values[:, None] * left.conj().T, **close)
    vectors, values = results["eigh"]
    np.testing.assert_allclose(vectors * values @ vectors.T, symmetric, **close)
    np.testing.assert_array_equal(results["subset"][1], values[1:3])
    np.testing.assert_array_equal(results["subset"][0], vectors[:, 1:3])
    updated = results["update"]
    np.testing.assert_allclose(updated.T @ updated, upper.T @ upper + np.outer(vector, vector), **close)
    _, diagonal, off_diagonal, _ = results["tridiagonal"]
    similar = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    np.testing.assert_allclose(np.linalg.eigvalsh(similar), np.linalg.eigvalsh(symmetric), **close)
    u, h, iterations, is_converged = results["qdwh"]
    np.testing.assert_allclose(u @ h, x * np.logspace(0, -5, 4), **close)
    np.testing.assert_allclose(u.T @ u, np.eye(4), **close)
    np.testing.assert_array_equal(h, h.T)
    assert is_converged
    assert 1 < iterations < 10


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: lax.linalg.qr(x.astype(jnp.bfloat16)), TypeError, "qr: needs f32, f64, c64 or c128, not bf16[3,3]"),
        (lambda x: lax.linalg.lu(x.astype(jnp.int32)), TypeError, "lu: needs f32, f64, c64 or c128, not i32[3,3]"),
        (
            lambda x: lax.linalg.svd(x, algorithm=lax.linalg.SvdAlgorithm.JACOBI),
            NotImplementedError,
            "svd: SvdAlgorithm.JACOBI is not supported; use DIVIDE_AND_CONQUER, the default, or QR",
        ),
        (
            lambda x: lax.linalg.eigh(x, implementation=lax.linalg.EighImplementation.QDWH),
            NotImplementedError,
            "eigh: only the QR implementation is supported",
        ),
        (
            lambda x: lax.linalg.eig(x, implementation=lax.linalg.EigImplementation.MAGMA),
            NotImplementedError,
            "eig: only the LAPACK implementation is supported",
        ),
        (
            lambda x: lax.linalg.schur(x, sort_eig_vals=True),
            NotImplementedError,
            "schur: sorting the eigenvalues is not supported",
        ),
        (
            lambda x: lax.linalg.eigh(x, subset_by_index=(0, 9)),
            ValueError,
            "eigh: subset_by_index (0, 9) must be a range within",
        ),
        (
            lambda x: lax.linalg.symmetric_product(x, x[:2]),
            ValueError,
            "symmetric_product: with A of shape (3, 3), C must have shape",
        ),
        (lambda x: lax.linalg.cholesky_update(x, x), TypeError, "cholesky_update: needs a square matrix and a vector"),
        (lambda x: lax.linalg.qdwh(x[:2]), ValueError, "qdwh: needs one matrix with no more columns than rows"),
        (lambda x: lax.linalg.qdwh(x.astype(jnp.int32)), ValueError, "qdwh: needs floats or complex numbers, not i32"),
        (lambda x: lax.linalg.no_such_name, AttributeError, "shardwise.lax.linalg has no attribute 'no_such_name'"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else "",
)
def test_error_messages(call, error, message):
    with pytest.raises(error) as caught:
        call(jnp.ones((3, 3)))
    assert str(caught.value).startswith(message)
