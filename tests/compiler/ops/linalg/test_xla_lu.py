"""LU decompositions in portable ops, compared with LAPACK's."""

import numpy as np
import pytest
import scipy.linalg

import shardwise.numpy as jnp
from shardwise import lax
from tests.compiler.ops.linalg.lowered_for_tpu import run_as_for_tpu

RNG = np.random.default_rng(0)
SHAPES = [(5, 5), (3, 6, 6), (7, 4), (4, 7), (2, 2, 5, 3), (1, 1), (33, 33)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_factors_and_pivots_are_those_of_lapack(shape, dtype):
    a = RNG.normal(size=shape).astype(dtype)
    if dtype == np.complex64:
        a = (a + 1j * RNG.normal(size=shape) / 100).astype(dtype)
    packed, pivots, permutation = run_as_for_tpu(lax.linalg.lu, a)
    for index in np.ndindex(shape[:-2]):
        factors, expected_pivots = scipy.linalg.lu_factor(a[index])
        np.testing.assert_array_equal(pivots[index], expected_pivots)
        np.testing.assert_allclose(packed[index], factors, rtol=2e-4, atol=2e-4)
        rows = np.arange(shape[-2])
        for row, pivot in enumerate(expected_pivots):
            rows[[row, pivot]] = rows[[pivot, row]]
        np.testing.assert_array_equal(permutation[index], rows)


def test_singular_matrices_have_a_zero_on_the_diagonal():
    a = np.array([[0, 0, 1], [0, 0, 2], [0, 3, 4]], np.float32)
    packed, pivots, _ = run_as_for_tpu(lax.linalg.lu, a)
    factors, expected_pivots = np.array([[0, 0, 1], [0, 3, 4], [0, 0, 2]], np.float32), [0, 2, 2]
    np.testing.assert_array_equal(packed, factors)
    np.testing.assert_array_equal(pivots, expected_pivots)


def test_functions_of_numpy():
    a, b = RNG.normal(size=(2, 6, 6)).astype(np.float32), RNG.normal(size=(2, 6, 2)).astype(np.float32)
    (x,) = run_as_for_tpu(jnp.linalg.solve, a, b)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-3, atol=1e-3)
    (determinant,) = run_as_for_tpu(jnp.linalg.det, a)
    np.testing.assert_allclose(determinant, np.linalg.det(a), rtol=1e-3)
