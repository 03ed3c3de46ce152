"""Reductions where the laws cannot look: derivatives at ties and zeros, and plans on a mesh."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_equal_elements_share_the_derivative_of_their_maximum():
    x = jnp.array([3.0, 1.0, 3.0, 2.0])
    assert sw.grad(jnp.max)(x).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert sw.grad(jnp.min)(-x).tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_the_derivative_of_a_product_is_the_product_of_the_others(count):
    x = np.arange(1.0, 1 + count, dtype=np.float32)
    others = [np.prod(np.delete(x, i)) for i in range(count)]
    np.testing.assert_allclose(sw.grad(jnp.prod)(x), others, rtol=1e-6)


def test_zeros_and_infinities_in_a_product_leave_the_other_derivatives_alone():
    assert sw.grad(jnp.prod)(jnp.array([0.0, 2.0, 3.0])).tolist() == [6.0, 0.0, 0.0]
    assert sw.grad(jnp.prod)(jnp.array([0.0, 0.0, 3.0])).tolist() == [0.0, 0.0, 0.0]
    assert sw.grad(jnp.prod)(jnp.array([np.inf, 2.0, 3.0])).tolist() == [6.0, np.inf, np.inf]
    hessian = sw.hessian(jnp.prod)(jnp.array([0.0, 0.0, 3.0]))
    np.testing.assert_array_equal(hessian, [[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_the_first_of_equal_elements_is_found_and_nan_before_all():
    assert int(jnp.argmax(jnp.array([1.0, 3.0, 3.0]))) == 1
    assert int(jnp.argmin(jnp.array([1.0, 0.0, -0.0]))) == 1
    assert int(jnp.argmax(jnp.array([1.0, np.nan, np.inf, np.nan]))) == 1
    assert int(jnp.argmin(jnp.array([1.0, np.nan, -np.inf, np.nan]))) == 1
    # Long enough for a reduction that starts in several places.
    x = np.zeros(100_000, np.float32)
    x[[77_777, 99_999]] = np.nan
    assert int(jnp.argmax(x)) == 77_777


@pytest.mark.parametrize("name", ["max", "min", "prod", "all", "any", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_pieces_of_uneven_dims_reduce_to_the_whole(mesh, name, axis):
    x = np.random.default_rng(0).integers(1, 4, (10, 6)).astype(np.float32) - (name in ("all", "any"))
    put = sw.device_put(x, NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(sw.jit(lambda x: getattr(jnp, name)(x, axis))(put), getattr(np, name)(x, axis))


def test_a_maximum_over_a_cut_dim_is_one_all_reduce(mesh):
    x = sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))
    assert sw.explain(sw.jit(lambda x: jnp.max(x, 0)))(x).counts() == {"all_reduce": 1}
    assert sw.explain(sw.jit(lambda x: jnp.all(x > 0, 0)))(x).counts() == {"all_reduce": 1}
