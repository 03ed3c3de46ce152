"""Elementwise functions that only newer versions of JAX have: values against numpy, and derivatives."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax

X = np.array([-3.0, -1.0, -1e-4, 0.0, 1e-4, 0.5, 1.0, 2.5], np.float32)


def test_log2():
    x = np.array([8.0, 0.5, 3.0, 0.0, np.inf, -1.0], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(lax.log2(x), np.log2(x), rtol=1e-6)
    np.testing.assert_allclose(sw.grad(lax.log2)(3.0), 1 / (3 * np.log(2)), rtol=1e-6)
    with pytest.raises(TypeError, match="log2"):
        lax.log2(jnp.arange(3))


def test_one_minus_square_and_its_derivative_do_not_cancel():
    near_one = np.float32(1 - 2**-20)
    expected = 1 - np.float64(near_one) ** 2
    np.testing.assert_allclose(lax.one_minus_square(near_one), expected, rtol=1e-6)
    assert abs(1 - near_one * near_one - expected) > 1e-7 * expected  # the formula loses digits
    np.testing.assert_allclose(sw.vmap(sw.grad(lax.one_minus_square))(X), -2 * X, rtol=1e-6)


@pytest.mark.parametrize("coefficients", [[], [2.0], [1.0, 5.0, 2.0], [0.5, -1, 0, 3, X]], ids=len)
def test_polynomial(coefficients):
    expected = sum((c * X**power for power, c in enumerate(coefficients)), np.zeros_like(X))
    np.testing.assert_allclose(lax.polynomial(X, coefficients), expected, rtol=1e-5, atol=1e-6)
    slopes = sum((c * power * X ** max(power - 1, 0) for power, c in enumerate(coefficients)), np.zeros_like(X))
    gradient = sw.grad(lambda x: lax.polynomial(x, coefficients).sum())(X)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6)


def test_polynomial_has_the_dtype_of_its_argument():
    assert lax.polynomial(jnp.arange(3), [1, 2]).dtype == np.int32
    assert lax.polynomial(jnp.ones(3, jnp.bfloat16), [1.0, np.float32(2)]).dtype == jnp.bfloat16
    with pytest.raises(TypeError, match="polynomial"):
        lax.polynomial(jnp.ones(3), [jnp.ones(2)])


def test_parameters_of_newer_releases():
    assert lax.erfc(0.5, accuracy=None) == lax.erfc(0.5)
    with pytest.raises(NotImplementedError, match="erfc"):
        lax.erfc(0.5, accuracy=lax.AccuracyMode.HIGHEST)
    assert lax.top_k(jnp.array([1, 3, 3]), 2, is_stable=False)[1].tolist() == [1, 2]
    assert jnp.lexsort((jnp.array([2, 1]), jnp.array([1, 1])), batch_size=1).tolist() == [1, 0]
    p = np.linspace(-1, 1, 20, dtype=np.float32)
    np.testing.assert_allclose(jnp.polyval(p, 0.5, unroll=None), np.polyval(p, 0.5), rtol=1e-5)
