"""Derivatives of gelu and silu, which are computed from the input: compared with the exact ones."""

import ml_dtypes
import numpy as np
import pytest
from scipy.special import erfc, expit

import shardwise as sw

X = np.linspace(-12, 12, 401)


def approximate_gelu(x):
    return sw.nn.gelu(x)


def exact_gelu(x):
    return sw.nn.gelu(x, approximate=False)


def derivative_of_approximate_gelu(x):
    z = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return (1 + np.tanh(z)) / 2 + x / 2 / np.cosh(z) ** 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


def derivative_of_exact_gelu(x):
    return erfc(-x / np.sqrt(2)) / 2 + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def derivative_of_silu(x):
    return expit(x) * (1 + x * expit(-x))


DERIVATIVES = {
    approximate_gelu: derivative_of_approximate_gelu,
    exact_gelu: derivative_of_exact_gelu,
    sw.nn.silu: derivative_of_silu,
}


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-6), (np.float16, 1e-3), (ml_dtypes.bfloat16, 5e-3)])
@pytest.mark.parametrize("function", DERIVATIVES)
def test_derivatives_are_near_the_exact_ones(function, dtype, error):
    x = X.astype(dtype)
    derivatives = sw.jit(sw.vmap(sw.grad(function)))(x)
    assert derivatives.dtype == dtype
    exact = DERIVATIVES[function](x.astype(np.float64))
    np.testing.assert_allclose(np.asarray(derivatives, np.float64), exact, rtol=0, atol=error)


@pytest.mark.parametrize("function", DERIVATIVES)
def test_derivatives_of_float64(function):
    with sw.enable_x64(True):
        derivatives = np.asarray(sw.jit(sw.vmap(sw.grad(function)))(X))
    np.testing.assert_allclose(derivatives, DERIVATIVES[function](X), rtol=0, atol=1e-14)


@pytest.mark.parametrize("function", DERIVATIVES)
def test_a_gradient_saves_one_array(function):
    _, pullback = sw.vjp(function, X.astype(np.float32))
    assert [leaf.shape for leaf in sw.tree.leaves(pullback)] == [X.shape]
