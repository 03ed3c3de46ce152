"""jnp.linalg: values, dtypes and gradients against numpy and JAX, vmap against a loop, 8 devices against one."""

import numpy as np
import pytest

import shardwise.numpy as jnp
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
    """Diagonally dominant matrices, which are well conditioned."""
    return (real(*shape) + 4 * np.eye(shape[-1])).astype(np.float32)


def case(name, *args, smooth=True, **keywords):
    return Case(f"linalg.{name}", args, keywords, rtol=2e-4, atol=5e-5, weak=False, smooth=smooth)


VECTOR_NORMS = (None, 0, 1, 3, -1, np.inf, -np.inf)
MATRIX_NORMS = (None, 1, -2, np.inf, "fro", "nuc")
CASES = [
    *(case("cholesky", positive(3, 4, 4), **options) for options in ({}, {"upper": True})),
    *(
        case("qr", x, smooth=mode != "complete")
        for mode in ("reduced", "complete")
        for x in (real(4, 3), real(2, 3, 4))
    ),
    *(case("qr", x, "r") for x in (real(4, 3), complex_(3, 3))),
    *(case("svd", x, full_matrices=False) for x in (real(4, 3), real(2, 3, 4))),
    *(case("svd", x, smooth=False) for x in (real(4, 3), complex_(3, 4))),
    case("svd", real(5, 3), compute_uv=False),
    case("svdvals", real(2, 3, 4)),
    case("eigh", positive(3, 3)),
    case("eigvalsh", positive(2, 3, 3)),
    case("eigvalsh", np.array([[2, 1j], [-1j, 3]], np.complex64)),
    case("solve", dominant(3, 3), real(3)),
    case("solve", dominant(3, 3), real(3, 2)),
    case("solve", dominant(2, 3, 3), real(3, 2)),
    case("solve", dominant(3, 3), real(2, 3, 2)),
    case("solve", dominant(4, 1, 3, 3), real(2, 3, 2)),
    case("solve", complex_(3, 3) + 4 * np.eye(3, dtype=np.complex64), complex_(3)),
    case("inv", dominant(2, 3, 3)),
    *(case("pinv", x) for x in (real(4, 3), real(2, 3, 5), complex_(3, 2))),
    case("lstsq", real(5, 3), real(5), None, smooth=False),
    *(case("det", real(size, size), smooth=size > 0) for size in (0, 1, 2, 3, 4, 6)),
    case("det", complex_(2, 4, 4)),
    *(case("slogdet", x) for x in (real(3, 3), real(2, 5, 5), np.zeros((2, 2), np.float32))),
    case("slogdet", complex_(4, 4)),
    *(case("norm", real(5), order) for order in VECTOR_NORMS),
    *(case("norm", real(4, 3), order) for order in MATRIX_NORMS),
    *(case("norm", real(2, 3, 4), order, (0, 2)) for order in MATRIX_NORMS),
    *(case("norm", real(2, 3, 4), order, 1, True) for order in (None, 1, np.inf)),
    *(case("norm", real(2, 3, 4), order, (2, 0), True) for order in (1, 2, "nuc")),
    *(case("norm", x) for x in (real(2, 3, 4), complex_(3, 2), np.arange(1, 4))),
    case("vector_norm", real(2, 3, 4), ord=1),
    case("vector_norm", real(2, 3, 4), axis=(0, 1), keepdims=True),
    case("matrix_norm", real(2, 3, 4), ord="nuc", keepdims=True),
    *(case("cond", dominant(3, 3), p) for p in MATRIX_NORMS),
    case("cond", real(4, 3)),
    *(case("matrix_rank", x) for x in (real(2, 4, 3), np.ones((3, 3), np.float32), real(3), np.zeros(3, np.float32))),
    case("matrix_rank", positive(3, 3), hermitian=True),
    *(case("matrix_power", dominant(2, 3, 3), n) for n in (-2, 0, 1, 2, 5)),
    case("matrix_power", np.array([[1, 1], [0, 1]]), 5),
    case("multi_dot", [real(2, 9), real(9, 3), real(3, 7)]),
    case("multi_dot", [real(3), real(3, 4), real(4, 2), real(2)]),
    case("tensorinv", dominant(6, 6).reshape(2, 3, 6), ind=2),
    case("tensorsolve", dominant(6, 6).reshape(2, 3, 6), real(2, 3)),
    case("tensorsolve", dominant(6, 6).reshape(2, 3, 6).transpose(0, 2, 1), real(2, 3), (1,)),
    case("matmul", real(2, 3, 4), real(4, 2)),
    case("vecdot", real(3, 4), real(4)),
    case("tensordot", real(2, 3, 4), real(3, 4)),
    case("outer", real(3), real(4)),
    case("cross", real(4, 3), real(3)),
    *(case(name, real(2, 3, 4), offset=1) for name in ("trace", "diagonal")),
    case("matrix_transpose", real(2, 3, 4)),
]
FEW = [
    case("solve", dominant(3, 3, 3), real(3, 3, 2)),
    case("inv", dominant(8, 3, 3)),
    case("det", dominant(6, 4, 4)),
    case("pinv", real(5, 3)),
    case("norm", real(9, 5), 2),
    case("qr", real(9, 5)),
]
NO_NUMPY = {"linalg.lstsq"}
NO_JAX = [  # JAX treats both tolerances as absolute, contrary to its documentation
    case("matrix_rank", np.diag([10.0, 1.0]).astype(np.float32), rtol=0.5),
    case("matrix_rank", np.diag([10.0, 1.0, 0.1]).astype(np.float32), tol=0.5),
]
ONLY_JAX = [
    case("qr", real(4, 3), "raw", smooth=False),
    *(case("svd", positive(3, 3), hermitian=True, compute_uv=uv, smooth=False) for uv in (True, False)),
    case("svd", np.array([[2, 1j], [-1j, -3]], np.complex64), hermitian=True, compute_uv=False, smooth=False),
    case("eigh", real(3, 3), "U", False, smooth=False),  # JAX differentiates at the symmetrized matrix
    case("eigh", complex_(3, 3), smooth=False),
    case("eig", real(3, 3), smooth=False),
    case("eig", complex_(2, 3, 3), smooth=False),
    case("eigvals", real(4, 4)),
    case("cholesky", real(3, 3)),  # not positive definite
    case("pinv", real(4, 3), rtol=0.4),
    case("pinv", positive(3, 3), hermitian=True, smooth=False),
    case("pinv", np.ones((3, 3), np.float32)),
    case("lstsq", real(5, 3), real(5)),
    case("lstsq", real(3, 5), real(3, 2)),
    case("lstsq", real(5, 3), real(5, 2), 0.5, smooth=False),
    case("cond", np.ones((3, 3), np.float32), 1, smooth=False),
    *(case(name, np.arange(9).reshape(3, 3) + 5 * np.eye(3, dtype=int)) for name in ("inv", "det", "svdvals", "norm")),
    *(case("det", np.eye(3).astype(name)) for name in ("float16", "bool")),
    case("solve", np.eye(2, dtype=np.int32), np.arange(2)),
    case("det", np.ones((4, 4), np.float32), smooth=False),  # singular
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([*(c for c in CASES if c.name not in NO_NUMPY), *NO_JAX], 60), ids=batch_name)
def test_like_numpy(cases):
    values_like_numpy(jnp, cases)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("cases", batches([*CASES, *ONLY_JAX], 60), ids=batch_name)
def test_like_jax(cases):
    jax = pytest.importorskip("jax")
    values_like(jnp, jax.numpy, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize(
    "cases",
    [
        FEW,
        *batches([*CASES, *ONLY_JAX], 60),
    ],
    ids=batch_name,
)
def test_gradients_like_jax(cases):
    jax = pytest.importorskip("jax")
    gradients_like(jnp, jax.numpy, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_vmap_like_loop(cases):
    vmap_like_loop(jnp, cases)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize(
    "cases",
    [FEW, *batches(CASES, 60)],
    ids=batch_name,
)
def test_sharded_like_one_device(mesh, cases, which):
    mesh_like_one_device(mesh, jnp, cases, which)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: jnp.linalg.inv(x[:2]), ValueError, "inv: needs square matrices, of rank 2 or more, not f32[2,3]"),
        (
            lambda x: jnp.linalg.inv(x.astype(jnp.bfloat16)),
            TypeError,
            "inv: needs f32, f64, c64 or c128, not bf16[3,3]; convert with `astype`",
        ),
        (lambda x: jnp.linalg.svd(x.astype(jnp.float16)), TypeError, "svd: needs f32, f64, c64 or c128, not f16[3,3]"),
        (
            lambda x: jnp.linalg.solve(x, x[:2]),
            ValueError,
            "solve: b must have as many rows as the matrices f32[3,3], not",
        ),
        (lambda x: jnp.linalg.eigh(x, "X"), ValueError, "eigh: UPLO must be None, 'L' or 'U', not 'X'"),
        (
            lambda x: jnp.linalg.qr(x, "some"),
            ValueError,
            "qr: mode must be 'reduced' (or 'full'), 'complete', 'r' or 'raw', not 'some'",
        ),
        (lambda x: jnp.linalg.norm(x, "q"), ValueError, "norm: ord='q' is not a norm of matrices"),
        (lambda x: jnp.linalg.norm(x[0], "fro"), ValueError, "norm: ord='fro' is not a norm of vectors"),
        (
            lambda x: jnp.linalg.norm(x[None], 2),
            ValueError,
            "norm: axis must be one axis (vectors) or two (matrices), not 3 axes (0, 1, 2)",
        ),
        (
            lambda x: jnp.linalg.matrix_power(x, 1.5),
            TypeError,
            "matrix_power: the exponent must be an integer, not 1.5",
        ),
        (lambda x: jnp.linalg.svd(x, subset_by_index=(0, 1)), ValueError, "svd: full_matrices and subset_by_index"),
        (
            lambda x: jnp.linalg.svd(x, False, subset_by_index=(0, 4)),
            ValueError,
            "svd: subset_by_index (0, 4) must be a range within 0 to 3",
        ),
        (lambda x: jnp.linalg.lstsq(x[None], x), TypeError, "lstsq: a must be a matrix, and b a vector or matrix"),
        (lambda x: jnp.linalg.multi_dot([x]), ValueError, "multi_dot: arrays must be two or more matrices"),
        (
            lambda x: jnp.linalg.slogdet(x, method="x"),
            ValueError,
            "slogdet: method must be None, 'lu' or 'qr', not 'x'",
        ),
        (lambda x: jnp.linalg.outer(x, x), ValueError, "outer: x1 and x2 must be vectors, not f32[3,3] and f32[3,3]"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else "",
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call(jnp.ones((3, 3)))
    assert str(caught.value).startswith(message)
