"""shard_alike: the planner gives two values one sharding, whichever of them has one."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental.shard_alike import shard_alike
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.arange(32, dtype=np.float32).reshape(8, 4)


def test_a_new_array_gets_the_sharding_of_another(mesh):
    x = sw.device_put(X, NamedSharding(mesh, P("data", "model")))

    @sw.jit
    def f(x):
        y, z = shard_alike(x * x, jnp.arange(32).reshape(8, 4))
        return y, z

    y, z = f(x)
    assert y.sharding.spec == z.sharding.spec == P("data", "model")
    np.testing.assert_array_equal(y, X * X)
    np.testing.assert_array_equal(z, np.arange(32).reshape(8, 4))
    assert sw.jit(lambda x: jnp.arange(32).reshape(8, 4) + 0 * x.sum())(x).sharding.spec == P()  # without it


def test_pytrees_derivatives_and_vmap(mesh):
    x = sw.device_put(X, NamedSharding(mesh, P("data")))

    def loss(x, y):
        first, second = shard_alike({"a": x}, {"a": y})
        return (first["a"] * second["a"]).sum()

    np.testing.assert_allclose(sw.jit(sw.grad(loss, (0, 1)))(x, X + 1), (X + 1, X))
    ones, mapped = sw.vmap(lambda x: shard_alike(jnp.ones(4), x))(x)
    np.testing.assert_array_equal(ones, np.ones((8, 4)))
    np.testing.assert_array_equal(mapped, X)


def test_errors():
    with pytest.raises(ValueError, match="the structures of x and y differ"):
        shard_alike([1.0], 1.0)
    with pytest.raises(ValueError, match=r"the shapes of f32\[3\] and f32\[2\] differ"):
        shard_alike(jnp.ones(3), jnp.ones(2))
