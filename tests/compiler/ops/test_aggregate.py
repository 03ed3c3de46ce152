"""Reductions where the laws cannot look: derivatives at ties and zeros, and plans on a mesh."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
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


def test_a_position_along_a_cut_dim_is_found_by_one_candidate_a_shard(mesh):
    x = sw.device_put(np.ones((64, 4096), np.float32), NamedSharding(mesh, P(None, ("data", "model"))))
    report = sw.explain(sw.jit(lambda x: jnp.argmax(x, 1)))(x)
    assert report.counts() == {"all_gather": 2}
    assert report.wire_bytes == 7 * 64 * (4 + 4)
    assert report.collectives[0].reason == "argmax needs data from other shards along 'data', 'model'"


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_pieces_find_the_position_of_the_whole(mesh, name):
    """Ties across pieces, NaN in several of them, the least extreme everywhere, pieces of nothing but padding."""
    extreme = -np.inf if name == "argmax" else np.inf
    rng = np.random.default_rng(0)
    for columns, spec in [(16, P(None, "data")), (9, P("model", "data")), (9, P(None, ("data", "model")))]:
        x = rng.integers(-2, 3, (6, columns)).astype(np.float32)
        x[1], x[2, 1:] = extreme, extreme
        x[3, ::3], x[4, 5] = np.nan, np.nan
        put = sw.device_put(x, NamedSharding(mesh, spec))
        found = sw.jit(lambda x: getattr(jnp, name)(x, 1))
        np.testing.assert_array_equal(found(put), getattr(np, name)(x, 1))


def test_bits_and_products_of_pieces_are_exchanged(mesh):
    x = np.random.default_rng(0).integers(-100, 100, (10, 6)).astype(np.int32)
    put = sw.device_put(x, NamedSharding(mesh, P(("data", "model"))))
    for function, oracle in [
        (lax.reduce_and, np.bitwise_and),
        (lax.reduce_or, np.bitwise_or),
        (lax.reduce_xor, np.bitwise_xor),
        (lax.reduce_prod, np.multiply),
    ]:
        reduced = sw.jit(lambda x, function=function: function(x, (0,)))
        np.testing.assert_array_equal(reduced(put), oracle.reduce(x, 0, dtype=np.int32))
        large = sw.device_put(np.ones((4096, 64), np.int32), NamedSharding(mesh, P("data", "model")))
        assert sw.explain(reduced)(large).counts() == {"all_gather": 1}
