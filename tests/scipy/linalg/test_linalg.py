"""Compare scipy.linalg with scipy and JAX (values, gradients), `vmap` with a loop, and 8 devices with one."""

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


PACKED_LU, PIVOTS = scipy.linalg.lu_factor(dominant(3, 3))
# JAX has no derivative of qr_multiply.
QR_MULTIPLIED = ((real(2, 4), "right"), (real(3, 2), "left"))
QR_MULTIPLIED_PIVOTED = ((real(4), "right"), (real(3), "left"))
CASES = [
    *(case("cholesky", positive(3, 3), lower) for lower in (False, True)),
    *(case("cho_solve", (np.linalg.cholesky(positive(3, 3)), True), b) for b in (real(3), real(3, 2))),
    case("cho_solve", (np.linalg.cholesky(positive(3, 3)).T.copy(), False), real(3)),
    *(case("lu_solve", (PACKED_LU, PIVOTS.astype(np.int32)), real(3, 2), trans) for trans in (0, 1, 2)),
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
    case("solve", positive(3, 3), real(3, 2), assume_a="pos", smooth=False),  # JAX's gradient is not Hermitian
    *(case("solve_triangular", dominant(3, 3), real(3), trans, lower=True) for trans in (0, "T", 2)),
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
NO_JAX = [case("polar", real(3, 3), "left")]  # JAX supports it only with method="svd", which scipy does not have
NO_SCIPY = {  # scipy differs in dtypes or parameters
    "linalg.block_diag",
    "linalg.lu_factor",
    "linalg.sqrtm",
}
JAX_ONLY = [
    case("cho_factor", positive(3, 3), smooth=False),
    *(case(name, x) for name, x in (("toeplitz", real(2, 3)), ("circulant", real(2, 3)), ("companion", real(2, 3)))),
    case("fiedler_companion", real(2, 4)),
    case("expm", real(2, 2) * 1e8, smooth=False),  # needs more than max_squarings squarings
    case("expm", np.ones((2, 2), np.int32)),
    case("block_diag", np.ones((1, 1), np.int32), real(2, 2)),
    case("hadamard", 4, np.float32),
    case("eigh", real(3, 3), lower=False, smooth=False),
    case("eigh", positive(3, 3)),
    case("polar", real(3, 3), "left", method="svd", smooth=False),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([*(c for c in CASES if c.name not in NO_SCIPY), *NO_JAX], 80), ids=batch_name)
def test_values_equal_those_of_scipy(cases):
    values_like_numpy(own, cases, scipy)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("cases", batches([*CASES, *JAX_ONLY], 100), ids=batch_name)
def test_values_equal_those_of_jax(cases):
    jax = pytest.importorskip("jax")
    values_like(own, pytest.importorskip("jax.scipy"), cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("cases", batches(CASES, 100), ids=batch_name)
def test_gradients_equal_those_of_jax(cases):
    jax = pytest.importorskip("jax")
    gradients_like(own, pytest.importorskip("jax.scipy"), cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([c for c in CASES if c.name != "linalg.lu_solve"], 100), ids=batch_name)
def test_vmap_equals_a_loop(cases):
    vmap_like_loop(own, cases)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("cases", batches(CASES, 100), ids=batch_name)
def test_results_on_a_mesh_equal_those_on_one_device(mesh, cases, which):
    mesh_like_one_device(mesh, own, cases, which)


@pytest.mark.slow
def test_gradients_of_solvers_and_matrix_functions_equal_finite_differences():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(3, 3)) + 3 * np.eye(3)).astype(np.float32)
    direction = rng.normal(size=(3, 3)).astype(np.float32)
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

    derivative = float((sw.jit(sw.grad(total))(x) * direction).sum())
    ahead, behind = (float(sw.jit(total)((x + step * direction).astype(np.float32))) for step in (3e-3, -3e-3))
    np.testing.assert_allclose(derivative, (ahead - behind) / 6e-3, rtol=5e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: own.linalg.qr(x, mode="raw"), "qr: mode must be 'full', 'economic' or 'r', not 'raw'"),
        (
            lambda x: own.linalg.solve(x, x, assume_a="diagonal"),
            "solve: assume_a must be 'gen', 'sym', 'her' or 'pos', not 'diagonal'",
        ),
        (lambda x: own.linalg.solve_triangular(x, x, trans=3), "solve_triangular: trans must be 0, 1, 2"),
        (lambda x: own.linalg.schur(x, "x"), "schur: output must be 'real' or 'complex', not 'x'"),
        (lambda x: own.linalg.polar(x, "up"), "polar: side must be 'right' or 'left', not 'up'"),
        (lambda x: own.linalg.hadamard(6), "hadamard: n must be a power of 2, not 6"),
        (lambda x: own.linalg.sqrtm(x[0]), "sqrtm: A must be one square matrix, not f32[3]"),
        (
            lambda x: own.linalg.cho_solve((x, True), x[:2]),
            "cho_solve: b must have as many rows as a: a is f32[3,3], b is f32[2,3]",
        ),
        (lambda x: own.linalg.companion(x[0, :1]), "companion: needs at least two coefficients, not f32[1]"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else "",
)
def test_errors_start_with_the_function_and_the_reason(call, message):
    with pytest.raises(ValueError) as caught:
        call(sw.numpy.ones((3, 3)))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: own.linalg.funm(real(2, 3), jnp.exp), "funm: A must be one square matrix, not f32.2,3."),
        (
            lambda: own.linalg.rsf2csf(real(2, 2), real(3, 3)),
            "rsf2csf: T and Z must be square matrices of equal size, not f32",
        ),
        (
            lambda: own.linalg.qr_multiply(real(4, 3), real(4, 3)),
            "qr_multiply: c of f32.4,3. cannot be multiplied by Q",
        ),
        (lambda: own.linalg.qr_multiply(real(4, 3), real(4), "up"), "mode must be 'left' or 'right', not 'up'"),
    ],
    ids=["funm", "rsf2csf", "qr_multiply shapes", "qr_multiply mode"],
)
def test_error_messages(call, text):
    with pytest.raises(ValueError, match=text):
        call()
