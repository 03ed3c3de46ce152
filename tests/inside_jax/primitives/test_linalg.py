"""Decompositions and solvers."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import case, jax, jnp, like_jax

linalg = jax.lax.linalg

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
A = (RNG.normal(size=(4, 6, 6)) + 4 * np.eye(6)).astype(np.float32)
SYMMETRIC = (A @ A.swapaxes(-1, -2) + np.diag(np.arange(6.0))).astype(np.float32)
TALL = RNG.normal(size=(4, 6, 3)).astype(np.float32)
B = RNG.normal(size=(4, 6, 2)).astype(np.float32)
BAND = RNG.normal(size=(4, 6)).astype(np.float32)
LOOSE = {"tolerance": 5e-4}


def eig_of(x):
    return linalg.eig(x, compute_left_eigenvectors=False)


def reflectors(x):
    """Return the Householder reflectors of a QR decomposition, in LAPACK's form."""
    packed, taus = jnp.linalg.qr(x, mode="raw")
    return packed.swapaxes(-1, -2), taus


def least_squares(x):
    q, r = jnp.linalg.qr(x)
    return q @ r, jnp.abs(r)


CASES = [
    case("cholesky", linalg.cholesky, SYMMETRIC, **LOOSE),
    case(
        "cholesky_update",
        linalg.cholesky_update,
        np.linalg.cholesky(SYMMETRIC[0]).T.copy(),
        BAND[0],
        no_grad="JAX has none",
        **LOOSE,
    ),
    case("eig", eig_of, A, no_grad="only eigenvalues have one", **LOOSE),
    case("eigvals", jnp.linalg.eigvals, A, **LOOSE),
    case("eigh", linalg.eigh, SYMMETRIC, tolerance=2e-3),
    case("eigh_upper", lambda x: linalg.eigh(x, lower=False, symmetrize_input=False)[1], SYMMETRIC, **LOOSE),
    case("eigh_subset", lambda x: jnp.linalg.eigvalsh(x)[..., :2], SYMMETRIC, **LOOSE),
    case("hessenberg", linalg.hessenberg, A, no_grad="JAX has none", **LOOSE),
    case(
        "householder_product",
        lambda x: linalg.householder_product(*reflectors(x)),
        TALL,
        no_grad="JAX has none",
        **LOOSE,
    ),
    case("lu", linalg.lu, A, **LOOSE),
    case(
        "lu_pivots_to_permutation", lambda x: linalg.lu_pivots_to_permutation(linalg.lu(x)[1], 6), A, no_grad="integers"
    ),
    case(
        "ormqr", lambda x, b: linalg.ormqr(*reflectors(x), b, transpose=True), TALL, B, no_grad="JAX has none", **LOOSE
    ),
    case("qr", lambda x: linalg.qr(x, full_matrices=False), TALL, **LOOSE),
    case("qr_full", lambda x: linalg.qr(x, full_matrices=True), TALL, no_grad="JAX has none", **LOOSE),
    case(
        "qr_pivoting",
        lambda x: linalg.qr(x, pivoting=True, full_matrices=False),
        TALL,
        no_grad="JAX has none for batches",
        **LOOSE,
    ),
    case("qr_product", least_squares, TALL, **LOOSE),
    case("schur", linalg.schur, A, no_grad="JAX has none", **LOOSE),
    case("svd", lambda x: linalg.svd(x, full_matrices=False), TALL, tolerance=2e-3),
    case("svd_values", lambda x: linalg.svd(x, compute_uv=False), TALL, **LOOSE),
    case(
        "symmetric_product",
        lambda x, c: linalg.symmetric_product(x, c, alpha=2.0, beta=0.5),
        TALL,
        SYMMETRIC,
        no_grad="JAX has none",
        **LOOSE,
    ),
    case("triangular_solve", lambda a, b: linalg.triangular_solve(a, b, left_side=True, lower=True), A, B, **LOOSE),
    case(
        "triangular_solve_right",
        lambda a, b: linalg.triangular_solve(a, b.swapaxes(-1, -2), transpose_a=True, unit_diagonal=True),
        A / 8,
        B,
        **LOOSE,
    ),
    case(
        "triangular_solve_conjugate",
        lambda a, b: linalg.triangular_solve(a + 1j * a, b + 0j, left_side=True, transpose_a=True, conjugate_a=True),
        A,
        B,
        **LOOSE,
    ),
    case("tridiagonal", linalg.tridiagonal, SYMMETRIC, no_grad="JAX has none", **LOOSE),
    case("tridiagonal_solve", lambda d, b: linalg.tridiagonal_solve(d / 8, 2 + d, d / 9, b), BAND, B, **LOOSE),
    case("solve", jnp.linalg.solve, A, B, **LOOSE),
    case("cho_solve", jax.vmap(jax.scipy.linalg.solve, (0, 0)), SYMMETRIC, B, tolerance=5e-3),
    case("slogdet", jnp.linalg.slogdet, A, **LOOSE),
    case("inv", jnp.linalg.inv, A, **LOOSE),
    case("expm", lambda x: jax.scipy.linalg.expm(x / 10), A[0], **LOOSE),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)
