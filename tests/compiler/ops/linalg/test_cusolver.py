"""The calls of cuSOLVER, cuBLAS and cuSPARSE in programs that are lowered for GPUs. No GPU is needed."""

import re

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.errors import UnsupportedError
from shardwise.scipy import linalg

SQUARE = (5, 5)


def lowered(function, *shapes, dtype=np.float32, platform="cuda"):
    args = [sw.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return sw.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    ("function", "shapes", "dtype", "target"),
    [
        (lax.linalg.cholesky, [SQUARE], np.float32, "cusolver_potrf_ffi"),
        (lax.linalg.lu, [(2, 5, 4)], np.float32, "cusolver_getrf_ffi"),
        (lambda a: lax.linalg.qr(a, full_matrices=False), [(5, 4)], np.float32, "cusolver_orgqr_ffi"),
        (lax.linalg.eigh, [SQUARE], np.float32, "cusolver_syevd_ffi"),
        (lax.linalg.eig, [SQUARE], np.float32, "cuhybrid_eig_real"),
        (lax.linalg.eig, [SQUARE], np.complex64, "cuhybrid_eig_comp"),
        (lax.linalg.tridiagonal_solve, [(4,), (4,), (4,), (4, 2)], np.float32, "cusparse_gtsv2_ffi"),
        (
            lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True, unit_diagonal=True),
            [SQUARE, (5, 2)],
            np.float32,
            "left_side = true, lower = true, unit_diagonal = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>",
        ),
    ],
    ids=["cholesky", "lu", "qr", "eigh", "eig", "complex eig", "tridiagonal_solve", "triangular_solve"],
)
def test_routines_of_lapack_have_counterparts(function, shapes, dtype, target):
    text = lowered(function, *shapes, dtype=dtype)
    assert target in text
    assert "lapack" not in text
    on_rocm = lowered(function, *shapes, dtype=dtype, platform="rocm")
    assert re.sub("^cu", "hip", target) in on_rocm
    assert '"cu' not in on_rocm


@pytest.mark.parametrize(
    ("shape", "full", "vectors", "options"),
    [
        ((5, 3), False, True, ("compute_uv = true", "full_matrices = false", "transposed = false")),
        ((3, 5), True, True, ("compute_uv = true", "full_matrices = true", "transposed = true")),
        ((3, 5), False, False, ("compute_uv = false", "full_matrices = false", "transposed = true")),
    ],
    ids=["tall", "wide and full", "wide without vectors"],
)
def test_wide_matrices_are_passed_to_gesvd_as_their_transpose(shape, full, vectors, options):
    text = lowered(lambda a: lax.linalg.svd(a, full_matrices=full, compute_uv=vectors), shape)
    call = next(line for line in text.splitlines() if "cusolver_gesvd_ffi" in line)
    for option in options:
        assert option in call
    row_major, column_major = "dense<[1, 0]> : tensor<2xindex>", "dense<[0, 1]> : tensor<2xindex>"
    assert (row_major if shape == (3, 5) else column_major) in call


def test_a_routine_without_a_counterpart_raises():
    message = "schur at .* has no lowering for the platform 'cuda': LAPACK's gees has no counterpart on GPUs. Move the"
    with pytest.raises(UnsupportedError, match=message):
        lowered(linalg.schur, SQUARE)
