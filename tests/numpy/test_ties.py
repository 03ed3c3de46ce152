"""Functions that choose between two: their slopes where these are equal, infinite or no number."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

POINTS = np.array([(0, 0), (3, 3), (-3, -3), (-0.0, 0), (1, 2), (2, 1), (5e3, -5e3), (np.nan, 0), (0, np.nan)]).T
INFINITE = np.array([(-np.inf, 0), (0, -np.inf), (np.inf, -np.inf)]).T
NAMES = ["logaddexp", "logaddexp2", "hypot", "maximum", "minimum", "fmax", "fmin"]


def _slopes(package, numpy, points):
    x, y = points.astype(np.float32)

    def all_of(x, y):
        return [package.vmap(package.value_and_grad(getattr(numpy, name), (0, 1)))(x, y) for name in NAMES]

    return [[np.asarray(part) for part in (value, *slopes)] for value, slopes in package.jit(all_of)(x, y)]


@pytest.mark.parametrize("points", [POINTS, INFINITE], ids=["finite", "infinite"])
def test_slopes_like_jax(points):
    for name, ours, theirs in zip(NAMES, _slopes(sw, jnp, points), _slopes(jax, jax.numpy, points), strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_a_logarithm_of_a_sum_has_the_slopes_of_its_limits(name):
    """JAX says 1 and 1 wherever the sum is infinite, and NaN of minus infinity with itself."""
    slopes = sw.jit(sw.grad(getattr(jnp, name), (0, 1)))
    for point, wanted in {(np.inf, 0.0): (1, 0), (0.0, np.inf): (0, 1), (-np.inf, 0.0): (0, 1)}.items():
        assert tuple(map(float, slopes(*point))) == wanted
    for number in (np.inf, -np.inf):
        assert tuple(map(float, slopes(number, number))) == (0.5, 0.5)


def test_second_slopes_at_ties():
    """Of log(exp(x) + exp(y)) along x: w(1 - w), where w is the share of x."""
    assert float(sw.grad(sw.grad(jnp.logaddexp))(2.0, 2.0)) == pytest.approx(0.25)
    assert float(sw.grad(sw.grad(jnp.logaddexp2))(2.0, 2.0)) == pytest.approx(0.25 * np.log(2))
    assert float(sw.grad(sw.grad(jnp.hypot))(2.0, 2.0)) == pytest.approx(4 / 8**1.5)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_complex_numbers(name):
    x = np.array([1 + 3j, 1 + 3j, 2 + 2j, 0.5j], np.complex64)
    y = np.array([1.5 - 3j, 1.5 + 9j, 2 + 2j, 2 - 1j], np.complex64)
    np.testing.assert_allclose(getattr(jnp, name)(x, y), getattr(jax.numpy, name)(x, y), rtol=1e-5)


def test_exp2_is_one_op():
    assert "= exp2 " in str(sw.make_jaxpr(lambda x: 2 * jnp.exp2(x))(1.0))
    assert jnp.exp2(jnp.array([3, -1])).tolist() == [8.0, 0.5]
