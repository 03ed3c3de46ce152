"""The derivative of gelu, compared with the exact one."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-6), (np.float16, 1e-3), (ml_dtypes.bfloat16, 5e-3)])
def test_the_derivative_of_gelu_is_near_the_exact_one(dtype, error):
    x = np.linspace(-12, 12, 401).astype(dtype)
    wide = x.astype(np.float64)
    z = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    exact = (1 + np.tanh(z)) / 2 + wide / 2 / np.cosh(z) ** 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * wide**2)
    derivatives = sw.jit(sw.vmap(sw.grad(sw.nn.gelu)))(x)
    assert derivatives.dtype == dtype
    np.testing.assert_allclose(np.asarray(derivatives, np.float64), exact, rtol=0, atol=error)
