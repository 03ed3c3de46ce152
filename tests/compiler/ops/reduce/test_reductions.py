"""Reductions beyond the laws: derivatives at ties and zeros, and sharded dims."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_ties_share_the_derivative_of_max_and_min():
    x = jnp.array([3.0, 1.0, 3.0, 2.0])
    assert sw.grad(jnp.max)(x).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert sw.grad(jnp.min)(-x).tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_gradient_of_prod(count):
    x = np.arange(1.0, 1 + count, dtype=np.float32)
    others = [np.prod(np.delete(x, i)) for i in range(count)]
    np.testing.assert_allclose(sw.grad(jnp.prod)(x), others, rtol=1e-6)


def test_gradient_of_prod_with_zeros_and_infinities():
    assert sw.grad(jnp.prod)(jnp.array([0.0, 2.0, 3.0])).tolist() == [6.0, 0.0, 0.0]
    assert sw.grad(jnp.prod)(jnp.array([0.0, 0.0, 3.0])).tolist() == [0.0, 0.0, 0.0]
    assert sw.grad(jnp.prod)(jnp.array([np.inf, 2.0, 3.0])).tolist() == [6.0, np.inf, np.inf]
    hessian = sw.hessian(jnp.prod)(jnp.array([0.0, 0.0, 3.0]))
    np.testing.assert_array_equal(hessian, [[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize("name", ["max", "min", "prod", "all", "any", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_unevenly_sharded_dims_like_numpy(mesh, name, axis):
    x = np.random.default_rng(0).integers(1, 4, (10, 6)).astype(np.float32) - (name in ("all", "any"))
    put = sw.device_put(x, NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(sw.jit(lambda x: getattr(jnp, name)(x, axis))(put), getattr(np, name)(x, axis))


def test_max_and_all_over_a_sharded_dim_need_one_all_reduce(mesh):
    x = sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))
    assert sw.explain(sw.jit(lambda x: jnp.max(x, 0)))(x).counts() == {"all_reduce": 1}
    assert sw.explain(sw.jit(lambda x: jnp.all(x > 0, 0)))(x).counts() == {"all_reduce": 1}


def test_bitwise_reductions_and_prod_over_a_sharded_dim_need_one_all_gather(mesh):
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


def test_partial_maxima_are_reduced_together():
    """They pass through reshapes, concatenations, maxima and the stacks and carries of loops."""
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    rng = np.random.default_rng(0)
    x, stack = rng.standard_normal((8, 6)).astype(np.float32), rng.standard_normal((3, 8, 6)).astype(np.float32)

    def maxima(x, stack):
        largest, each = lax.scan(
            lambda carry, row: (jnp.maximum(carry, row.max()), row.max().reshape(1)), jnp.float32(-9), stack
        )
        return jnp.concatenate([x.max().reshape(1), largest.reshape(1), each.reshape(3), jnp.ones(1)])

    shardings = (NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "data", "model")))
    compiled = sw.jit(maxima, in_shardings=shardings)
    assert compiled.lower(x, stack).plan.counts() == {"all_reduce": 1}
    each = stack.max((1, 2))
    np.testing.assert_array_equal(compiled(x, stack), [x.max(), each.max(), *each, 1])
