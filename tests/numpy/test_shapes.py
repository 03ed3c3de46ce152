"""Reshapes of sharded arrays."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.numpy.test_numpy_functions import arrays


def test_splitting_and_merging_heads_needs_no_collectives(mesh):
    x = sw.device_put(np.arange(64, dtype=np.float32).reshape(2, 32), NamedSharding(mesh, P(None, "data")))

    def split_and_merge(x):
        heads = jnp.moveaxis(jnp.reshape(x, (2, 8, 4)), 1, 0)
        return jnp.reshape(jnp.moveaxis(heads * 2, 0, 1), (2, 32))

    assert sw.explain(sw.jit(split_and_merge))(x).stages.local.collectives() == []
    np.testing.assert_array_equal(sw.jit(split_and_merge)(x), 2 * np.asarray(x))


def test_reshape_transpose_broadcast_and_astype():
    (x,) = arrays((2, 3, 4))
    np.testing.assert_array_equal(jnp.reshape(x, (4, -1)), x.reshape(4, -1))
    np.testing.assert_array_equal(jnp.asarray(x).reshape([6, 4]), x.reshape(6, 4))
    np.testing.assert_array_equal(jnp.transpose(x, (1, 2, 0)), x.transpose(1, 2, 0))
    np.testing.assert_array_equal(jnp.asarray(x).transpose(2, 0, 1), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(jnp.broadcast_to(x[:, :1], (5, 2, 3, 4)), np.broadcast_to(x[:, :1], (5, 2, 3, 4)))
    np.testing.assert_array_equal(jnp.asarray(x).astype(jnp.int32), x.astype(np.int32))
