"""shardwise.scipy.linalg: values and gradients against scipy and JAX, mapped as one by one, on 8 devices as on one."""

import numpy as np
import pytest
import scipy.linalg

import shardwise as sw
import shardwise.numpy as jnp
import shardwise.scipy as own
from tests.agreement import (
    Case,
    batch_name,
    batches,
    gradients_like,
    mesh_like_one_device,
    values_like,
    values_like_numpy,
    vmap_like_loop,
)

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
    return Case(f"linalg.{name}", args, keywords, rtol=3e-4, atol=5e-5, weak=False, smooth=smooth)


FACTORS = dominant(3, 3)
PIVOTS = scipy.linalg.lu_factor(FACTORS)
# JAX has no derivative of it, by whichever way it is computed.
QR_MULTIPLIED = ((real(2, 4), "right"), (real(3, 2), "left"))
QR_MULTIPLIED_PIVOTED = ((real(4), "right"), (real(3), "left"))
CASES = [
    *(case("cholesky", positive(3, 3), lower) for lower in (False, True)),
    *(case("cho_solve", (np.linalg.cholesky(positive(3, 3)), True), b) for b in (real(3), real(3, 2))),
    case("cho_solve", (np.linalg.cholesky(positive(3, 3)).T.copy(), False), real(3)),
    *(case("lu_solve", (PIVOTS[0], PIVOTS[1].astype(np.int32)), real(3, 2), trans) for trans in (0, 1, 2)),
    case("lu_solve", scipy.linalg.lu_factor(complex_(3, 3)), complex_(3), 2, smooth=False),
    *(case("lu", x) for x in (real(3, 3), real(4, 3), real(3, 4))),
    case("lu", real(3, 3), permute_l=True),
    case("lu_factor", dominant(3, 3)),
    *(case("qr", x, mode="economic") for x in (real(4, 3), complex_(3, 4))),
    case("qr", real(4, 3), mode="full"),
    case("qr", real(4, 3), mode="r"),
    case("qr", real(4, 3), mode="economic", pivoting=True),
    case("svd", real(4, 3), full_matrices=False),
    case("eigh", positive(3, 3), eigvals_only=True),
    case("eigh_tridiagonal", real(4), real(3), eigvals_only=True, smooth=False),
    case("eigh_tridiagonal", real(4), real(3), eigvals_only=True, select="i", select_range=(1, 2), smooth=False),
    case("expm", real(3, 3)),
    case("expm", real(2, 3, 3) * 5),
    case("expm", complex_(3, 3)),
    case("expm", np.zeros((2, 2), np.float32)),
    case("expm_frechet", real(3, 3), real(3, 3), smooth=False),
    case("sqrtm", positive(3, 3), smooth=False),
    case("polar", real(3, 3), smooth=False),
    case("polar", real(4, 3), smooth=False),
    *(case("schur", real(4, 4), output, smooth=False) for output in ("real", "complex")),
    case("hessenberg", real(4, 4), calc_q=True, smooth=False),
    case("hessenberg", real(3, 3), smooth=False),
    case("solve", dominant(3, 3), real(3)),
    case("solve", positive(3, 3), real(3, 2), assume_a="pos", smooth=False),  # JAX's is not of a Hermitian matrix
    *(case("solve_triangular", dominant(3, 3), real(3), way, lower=True) for way in (0, "T", 2)),
    case("solve_triangular", dominant(3, 3), real(3, 2), unit_diagonal=True),
    case("solve_sylvester", positive(3, 3), positive(2, 2), real(3, 2), smooth=False),
    case("det", real(4, 4)),
    case("inv", dominant(3, 3)),
    case("block_diag", real(2, 3), real(1, 1), real(2)),
    case("toeplitz", real(3), real(4)),
    case("toeplitz", complex_(3)),
    case("hankel", real(3), real(4)),
    case("hankel", np.arange(3)),
    case("circulant", real(4)),
    case("companion", real(4)),
    *(case("fiedler_companion", real(size) + 3) for size in (2, 3, 4, 5, 6)),
    *(case("qr_multiply", real(4, 3), c, mode, smooth=False) for c, mode in QR_MULTIPLIED),
    *(case("qr_multiply", real(4, 3), c, mode, True, smooth=False) for c, mode in QR_MULTIPLIED_PIVOTED),
    case("qr_multiply", complex_(4, 3), complex_(2, 4), conjugate=True, smooth=False),
    *(case("rsf2csf", *scipy.linalg.schur(real(size, size)), smooth=False) for size in (1, 2, 5)),
    case("fiedler", real(4), smooth=False),
    case("leslie", real(4), real(3)),
    *(case("convolution_matrix", real(3), 4, mode) for mode in ("full", "same", "valid")),
    case("convolution_matrix", real(5), 2, "same"),
    *(case(name, n) for name in ("hilbert", "pascal", "invpascal", "hadamard") for n in (1, 4)),
    case("invhilbert", 3),
    *(case("pascal", 4, kind) for kind in ("lower", "upper")),
    *(case("helmert", 4, full) for full in (False, True)),
    *(case("dft", 5, scale) for scale in (None, "sqrtn", "n")),
]
NO_JAX = [case("polar", real(3, 3), "left")]  # only with method="svd", which scipy does not know
NO_SCIPY = {  # it promotes or spells some otherwise
    "linalg.block_diag",
    "linalg.lu_factor",
    "linalg.sqrtm",
}
OURS_AND_JAX = [
    case("cho_factor", positive(3, 3), smooth=False),
    *(case(name, x) for name, x in (("toeplitz", real(2, 3)), ("circulant", real(2, 3)), ("companion", real(2, 3)))),
    case("fiedler_companion", real(2, 4)),
    case("expm", real(2, 2) * 1e8, smooth=False),  # more squares than it may take
    case("expm", np.ones((2, 2), np.int32)),
    case("block_diag", np.ones((1, 1), np.int32), real(2, 2)),
    case("hadamard", 4, np.float32),
    case("eigh", real(3, 3), lower=False, smooth=False),
    case("eigh", positive(3, 3)),
    case("polar", real(3, 3), "left", method="svd", smooth=False),
]


@pytest.mark.slow
@pytest.mark.parametrize("cases", batches([*(c for c in CASES if c.name not in NO_SCIPY), *NO_JAX], 80), ids=batch_name)
def test_like_scipy(cases):
    values_like_numpy(own, cases, scipy)


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("cases", batches([*CASES, *OURS_AND_JAX], 100), ids=batch_name)
def test_like_jax(cases):
    jax = pytest.importorskip("jax")
    values_like(own, pytest.importorskip("jax.scipy"), cases, jax)


@pytest.mark.jax
@pytest.mark.parametrize(("c", "mode"), QR_MULTIPLIED)
def test_gradient_of_qr_multiply(c, mode):
    """As JAX's of the product with the factor itself."""
    jax = pytest.importorskip("jax")
    a = real(4, 3)

    def by_factor(a):
        q, _ = jax.scipy.linalg.qr(a, mode="economic")
        return (c @ q if mode == "right" else q @ c).sum()

    found = sw.grad(lambda a: own.linalg.qr_multiply(a, c, mode)[0].sum())(a)
    np.testing.assert_allclose(found, jax.grad(by_factor)(a), rtol=1e-4, atol=1e-4)


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("cases", batches(CASES, 100), ids=batch_name)
def test_gradients_like_jax(cases):
    jax = pytest.importorskip("jax")
    gradients_like(own, pytest.importorskip("jax.scipy"), cases, jax)


@pytest.mark.slow
@pytest.mark.parametrize("cases", batches([c for c in CASES if c.name != "linalg.lu_solve"], 100), ids=batch_name)
def test_mapped_is_one_by_one(cases):
    vmap_like_loop(own, cases)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("cases", batches(CASES, 100), ids=batch_name)
def test_on_a_mesh_as_on_one_device(mesh, cases, which):
    mesh_like_one_device(mesh, own, cases, which)


def test_gradients_of_solutions_and_functions_like_finite_differences():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(3, 3)) + 3 * np.eye(3)).astype(np.float32)
    move = rng.normal(size=(3, 3)).astype(np.float32)
    linalg = own.linalg

    def total(x):
        symmetric = x @ x.T
        factor = linalg.cho_factor(symmetric)
        return (
            linalg.expm(x * 0.3).sum()
            + linalg.cho_solve(factor, x).sum()
            + linalg.lu_solve(linalg.lu_factor(x), x.T, 1).sum()
            + linalg.solve_triangular(x, x.T, lower=True).sum()
            + linalg.polar(x)[1].sum()
        )

    slope = float((sw.jit(sw.grad(total))(x) * move).sum())
    ahead, behind = (float(sw.jit(total)((x + by * move).astype(np.float32))) for by in (3e-3, -3e-3))
    np.testing.assert_allclose(slope, (ahead - behind) / 6e-3, rtol=5e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: own.linalg.qr(x, mode="raw"), "qr: mode 'raw' is none of 'full', 'economic' and 'r'"),
        (lambda x: own.linalg.solve(x, x, assume_a="diagonal"), "solve: assume_a 'diagonal' is none of"),
        (lambda x: own.linalg.solve_triangular(x, x, trans=3), "solve_triangular: trans must be 0, 1, 2"),
        (lambda x: own.linalg.schur(x, "x"), "schur: output must be 'real' or 'complex', not 'x'"),
        (lambda x: own.linalg.polar(x, "up"), "polar: side must be 'right' or 'left', not 'up'"),
        (lambda x: own.linalg.hadamard(6), "hadamard: n must be a power of 2, not 6"),
        (lambda x: own.linalg.sqrtm(x[0]), "sqrtm: needs one square matrix, not f32[3]"),
        (lambda x: own.linalg.cho_solve((x, True), x[:2]), "cho_solve: matrices of f32[3,3] need as many rows of b"),
        (lambda x: own.linalg.companion(x[0, :1]), "companion: needs two or more coefficients, not f32[1]"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else "",
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError) as caught:
        call(sw.numpy.ones((3, 3)))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_functions_of_matrices(size):
    x = dominant(size, size)
    for ours, theirs in ((jnp.sin, np.sin), (jnp.exp, np.exp)):
        np.testing.assert_allclose(own.linalg.funm(x, ours), scipy.linalg.funm(x, theirs), rtol=1e-3, atol=1e-4)
    found, error = own.linalg.funm(x, jnp.sin, disp=False)
    assert np.abs(np.asarray(found) - scipy.linalg.funm(x.astype(float), np.sin)).max() < 1e-3
    assert 0 < float(error) < 1e-3


def test_equal_eigenvalues_have_no_distance():
    """Parlett's recurrence divides by it: the estimate says how far to trust the result."""
    _, error = own.linalg.funm(np.array([[1, 1], [0, 1]], np.float32), jnp.exp, disp=False)
    assert float(error) == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: own.linalg.funm(real(2, 3), jnp.exp), "funm: needs one square matrix, not f32.2,3."),
        (lambda: own.linalg.rsf2csf(real(2, 2), real(3, 3)), "rsf2csf: needs two square matrices of one size"),
        (lambda: own.linalg.qr_multiply(real(4, 3), real(4, 3)), "qr_multiply: f32.4,3. does not go with a Q"),
        (lambda: own.linalg.qr_multiply(real(4, 3), real(4), "up"), "mode must be 'left' or 'right', not 'up'"),
    ],
    ids=["funm", "rsf2csf", "qr_multiply shapes", "qr_multiply mode"],
)
def test_what_cannot_be(call, text):
    with pytest.raises(ValueError, match=text):
        call()
