"""Associated Legendre functions: compared with JAX and with closed formulas; deprecated, as in JAX."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.scipy import legendre, special
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

POINTS = np.array([-1, -0.5, 0, 0.3, 0.99, 1], np.float32)


@pytest.mark.jax
@pytest.mark.filterwarnings("ignore:jax.scipy.special.lpmn:DeprecationWarning")
@pytest.mark.parametrize("degree", [0, 1, 2, 8, 20])
def test_values_and_derivatives_equal_those_of_jax(degree):
    jax = pytest.importorskip("jax")
    theirs, points = jax.scipy.special, jax.numpy.array(POINTS)
    expected = theirs.lpmn(degree, degree, points)
    for ours, other in zip(legendre.lpmn(degree, degree, POINTS), expected, strict=True):
        assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(ours, other, rtol=2e-4, atol=1e-5)
    for normalized in (False, True):
        expected_values = theirs.lpmn_values(degree, degree, points, normalized)
        np.testing.assert_allclose(
            legendre.lpmn_values(degree, degree, POINTS, normalized), expected_values, rtol=2e-4, atol=1e-4
        )


def test_values_and_derivatives_of_degree_three():
    values, derivatives = legendre.lpmn(3, 3, POINTS[1:-1])
    x = POINTS[1:-1]
    sine = np.sqrt(1 - x * x)
    np.testing.assert_allclose(values[0, 3], (5 * x**3 - 3 * x) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values[2, 3], 15 * x * sine**2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(derivatives[2, 3], 15 - 45 * x**2, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(derivatives[3, 3], 45 * x * sine, rtol=1e-5, atol=1e-5)
    assert not values[3, 2].any() and not derivatives[3, 2].any()


def test_normalized_values_of_a_high_degree_are_finite():
    values = legendre.lpmn_values(100, 100, POINTS, True)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[0, 100, -1], np.sqrt(201 / (4 * np.pi)), rtol=1e-4)


def test_sharded_points_stay_sharded():
    mesh = sw.make_mesh((2,), ("rows",))
    points = sw.device_put(np.linspace(-0.9, 0.9, 8, dtype=np.float32), NamedSharding(mesh, P("rows")))
    values, derivatives = legendre.lpmn(4, 4, points)
    for result, expected in zip((values, derivatives), legendre.lpmn(4, 4, np.asarray(points)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        assert result.sharding.is_equivalent_to(NamedSharding(mesh, P(None, None, "rows")), 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((2, 2, np.arange(3)), TypeError, "lpmn: z must be float32 or float64, not int"),
        ((2, 2, np.float32(0.5)), ValueError, "lpmn: z must be a vector, not f32"),
        ((1, 2, POINTS), NotImplementedError, "lpmn: m and n must be equal, not 1 and 2"),
        ((-1, -1, POINTS), ValueError, "lpmn: n must be 0 or more, not -1"),
    ],
)
def test_arguments_that_are_not_supported(arguments, error, message):
    with pytest.raises(error, match=message):
        legendre.lpmn(*arguments)


def test_the_names_in_special_are_deprecated():
    with pytest.warns(DeprecationWarning, match=r"jax\.scipy\.special\.lpmn is deprecated: JAX plans no replacement"):
        assert special.lpmn is legendre.lpmn
    with pytest.warns(DeprecationWarning, match=r"jax\.scipy\.special\.lpmn_values is deprecated"):
        assert special.lpmn_values is legendre.lpmn_values
    assert "lpmn" not in dir(special)
