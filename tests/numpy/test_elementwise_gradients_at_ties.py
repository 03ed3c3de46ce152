"""Gradients of binary functions such as maximum and logaddexp at ties, infinities and NaN."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

POINTS = np.array([(0, 0), (3, 3), (-3, -3), (-0.0, 0), (1, 2), (2, 1), (5e3, -5e3), (np.nan, 0), (0, np.nan)]).T
INFINITE = np.array([(-np.inf, 0), (0, -np.inf), (np.inf, -np.inf)]).T
NAMES = ["logaddexp", "logaddexp2", "hypot", "maximum", "minimum", "fmax", "fmin"]


def _values_and_gradients(package, numpy, points):
    x, y = points.astype(np.float32)

    def evaluate_all(x, y):
        return [package.vmap(package.value_and_grad(getattr(numpy, name), (0, 1)))(x, y) for name in NAMES]

    results = package.jit(evaluate_all)(x, y)
    return [[np.asarray(part) for part in (value, *gradients)] for value, gradients in results]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("points", [POINTS, INFINITE], ids=["finite", "infinite"])
def test_gradients_like_jax(points):
    ours, theirs = _values_and_gradients(sw, jnp, points), _values_and_gradients(jax, jax.numpy, points)
    for name, our_parts, their_parts in zip(NAMES, ours, theirs, strict=True):
        for our_part, their_part in zip(our_parts, their_parts, strict=True):
            np.testing.assert_allclose(our_part, their_part, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_gradients_of_logaddexp_at_infinities_are_limits(name):
    """JAX returns (1, 1) wherever the sum is infinite, and NaN if both operands are minus infinity."""
    gradient = sw.jit(sw.grad(getattr(jnp, name), (0, 1)))
    for point, expected in {(np.inf, 0.0): (1, 0), (0.0, np.inf): (0, 1), (-np.inf, 0.0): (0, 1)}.items():
        assert tuple(map(float, gradient(*point))) == expected
    for number in (np.inf, -np.inf):
        assert tuple(map(float, gradient(number, number))) == (0.5, 0.5)


def test_second_derivatives_at_ties():
    """The second derivative of log(exp(x) + exp(y)) in x is w(1 - w), where w is the softmax weight of x."""
    assert float(sw.grad(sw.grad(jnp.logaddexp))(2.0, 2.0)) == pytest.approx(0.25)
    assert float(sw.grad(sw.grad(jnp.logaddexp2))(2.0, 2.0)) == pytest.approx(0.25 * np.log(2))
    assert float(sw.grad(sw.grad(jnp.hypot))(2.0, 2.0)) == pytest.approx(4 / 8**1.5)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_complex_logaddexp_like_jax(name):
    x = np.array([1 + 3j, 1 + 3j, 2 + 2j, 0.5j], np.complex64)
    y = np.array([1.5 - 3j, 1.5 + 9j, 2 + 2j, 2 - 1j], np.complex64)
    np.testing.assert_allclose(getattr(jnp, name)(x, y), getattr(jax.numpy, name)(x, y), rtol=1e-5)


def test_exp2_is_one_op():
    assert "= exp2 " in str(sw.make_jaxpr(lambda x: 2 * jnp.exp2(x))(1.0))
    assert jnp.exp2(jnp.array([3, -1])).tolist() == [8.0, 0.5]
