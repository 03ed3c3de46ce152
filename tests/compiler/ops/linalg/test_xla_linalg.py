"""XLA's own decompositions, which programs for TPUs and other platforms call. XLA expands them on CPU too."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.errors import UnsupportedError
from tests.compiler.ops.linalg.lowered_for_tpu import lower_for, run_as_for_tpu

RNG = np.random.default_rng(0)
GENERAL = RNG.normal(size=(2, 5, 5)).astype(np.float32)
POSITIVE = GENERAL @ GENERAL.transpose(0, 2, 1) + 5 * np.eye(5, dtype=np.float32)
COMPLEX = GENERAL + 1j * RNG.normal(size=(2, 5, 5)).astype(np.float32)
HERMITIAN = COMPLEX @ COMPLEX.conj().transpose(0, 2, 1) + 5 * np.eye(5, dtype=np.complex64)


@pytest.mark.parametrize("a", [POSITIVE, HERMITIAN], ids=["real", "complex"])
def test_cholesky(a):
    (factor,) = run_as_for_tpu(lax.linalg.cholesky, a)
    np.testing.assert_allclose(factor, np.linalg.cholesky(a), rtol=1e-5, atol=1e-5)


def test_cholesky_of_a_matrix_that_is_not_positive_definite_has_nan():
    (factor,) = run_as_for_tpu(lax.linalg.cholesky, -POSITIVE)
    assert np.isnan(factor).any(axis=(1, 2)).all()


@pytest.mark.parametrize("a", [GENERAL[:, :, :3], COMPLEX], ids=["tall", "complex"])
def test_qr(a):
    q, r = run_as_for_tpu(lambda a: lax.linalg.qr(a, full_matrices=False), a)
    np.testing.assert_allclose(q @ r, a, atol=1e-5)
    np.testing.assert_allclose(q.conj().transpose(0, 2, 1) @ q, np.broadcast_to(np.eye(a.shape[2]), r.shape), atol=1e-5)
    np.testing.assert_array_equal(np.tril(r, -1), 0)


@pytest.mark.parametrize("a", [POSITIVE, HERMITIAN], ids=["real", "complex"])
@pytest.mark.parametrize("lower", [True, False])
def test_eigh(a, lower):
    read = np.tril(a) if lower else np.triu(a)  # the other triangle is not read
    vectors, values = run_as_for_tpu(lambda a: lax.linalg.eigh(a, lower=lower, symmetrize_input=False), read)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a), rtol=1e-4)
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None], atol=1e-3)


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_triangular_solve(left_side, transpose):
    a = np.tril(POSITIVE)
    options = {"left_side": left_side, "lower": True, "transpose_a": transpose}
    (x,) = run_as_for_tpu(lambda a, b: lax.linalg.triangular_solve(a, b, **options), a, GENERAL)
    op = a.transpose(0, 2, 1) if transpose else a
    np.testing.assert_allclose(op @ x if left_side else x @ op, GENERAL, atol=1e-4)


@pytest.mark.parametrize("platform", ["tpu", "metal"])
@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (
            lax.linalg.eig,
            (GENERAL,),
            "eig at .* has no lowering for the platform '{}': XLA has no counterpart of .* geev",
        ),
        (lax.linalg.svd, (GENERAL,), "svd at .* has no lowering for the platform '{}': XLA has no .* gesdd. Move the"),
        (
            lambda *arrays: lax.linalg.tridiagonal_solve(*arrays, perturb_singular=True),
            (*[GENERAL[0, 0]] * 3, GENERAL[0]),
            "tridiagonal_solve at .* has no lowering for the platform '{}': jaxlib's solver with perturbed pivots",
        ),
        (
            lambda x: sw.pure_callback(np.sin, sw.ShapeDtypeStruct(x.shape, x.dtype), x),
            (GENERAL,),
            "callback at test_xla_linalg.py.* has no lowering for the platform '{}': XLA calls Python functions on",
        ),
    ],
    ids=["eig", "svd", "tridiagonal_solve", "callback"],
)
def test_an_op_without_a_lowering_is_an_error_with_op_and_platform(function, args, message, platform):
    with pytest.raises(UnsupportedError, match=message.format(platform)):
        lower_for(platform, function, *args)
