"""The gradient of qr_multiply."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.scipy as own
from tests.scipy.linalg.test_linalg import QR_MULTIPLIED, real


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize(("c", "mode"), QR_MULTIPLIED)
def test_gradient_of_qr_multiply_equals_that_of_an_explicit_product(c, mode):
    jax = pytest.importorskip("jax")
    a = real(4, 3)

    def explicit_product(a):
        q, _ = jax.scipy.linalg.qr(a, mode="economic")
        return (c @ q if mode == "right" else q @ c).sum()

    gradient = sw.grad(lambda a: own.linalg.qr_multiply(a, c, mode)[0].sum())(a)
    np.testing.assert_allclose(gradient, jax.grad(explicit_product)(a), rtol=1e-4, atol=1e-4)
