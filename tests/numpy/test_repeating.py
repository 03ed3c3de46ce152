"""roll along a sharded dim: its collectives and its derivative."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.mark.parametrize("rows", [2**16, 2**16 - 3], ids=["even", "uneven"])
def test_roll_along_a_sharded_dim_sends_only_the_halo(rows):
    """jax#39301: XLA's partitioner gave wrong numbers for the transpose of roll along a sharded dim."""
    mesh = sw.make_mesh((8,), ("rows",))
    x = np.cos(np.arange(rows * 4, dtype=np.float32)).reshape(rows, 4)
    sharded = sw.device_put(x, NamedSharding(mesh, P("rows")))
    weights = np.sin(np.arange(rows * 4, dtype=np.float32)).reshape(rows, 4)

    def loss(x):
        return (jnp.roll(x, 3, axis=0) * weights).sum()

    np.testing.assert_array_equal(sw.jit(lambda x: jnp.roll(x, -5, axis=0))(sharded), np.roll(x, -5, axis=0))
    np.testing.assert_array_equal(sw.jit(sw.grad(loss))(sharded), np.roll(weights, -3, axis=0))
    plan = sw.explain(sw.jit(lambda x: jnp.roll(x, 3, axis=0)))(sharded)
    local = plan.stages.local
    row_bytes = 4 * 4
    assert sum(local.bytes_sent(equation) for equation in local.collectives()) <= 4 * 3 * row_bytes
