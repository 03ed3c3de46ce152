"""argmax and argmin: ties, NaN, and sharded dims."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_ties_return_the_first_index_and_nan_comes_before_numbers():
    assert int(jnp.argmax(jnp.array([1.0, 3.0, 3.0]))) == 1
    assert int(jnp.argmin(jnp.array([1.0, 0.0, -0.0]))) == 1
    assert int(jnp.argmax(jnp.array([1.0, np.nan, np.inf, np.nan]))) == 1
    assert int(jnp.argmin(jnp.array([1.0, np.nan, -np.inf, np.nan]))) == 1
    # Long enough that XLA splits the reduction.
    x = np.zeros(100_000, np.float32)
    x[[77_777, 99_999]] = np.nan
    assert int(jnp.argmax(x)) == 77_777


def test_argmax_along_a_sharded_dim_gathers_one_candidate_per_shard(mesh):
    x = sw.device_put(np.ones((64, 4096), np.float32), NamedSharding(mesh, P(None, ("data", "model"))))
    report = sw.explain(sw.jit(lambda x: jnp.argmax(x, 1)))(x)
    assert report.counts() == {"all_gather": 2}
    assert report.wire_bytes == 7 * 64 * (4 + 4)
    assert report.collectives[0].reason == "argmax needs data from other shards along 'data', 'model'"


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argminmax_along_a_sharded_dim_like_numpy(mesh, name):
    """Ties across shards, NaN in several shards, rows of the neutral element, shards of padding only."""
    neutral = -np.inf if name == "argmax" else np.inf
    rng = np.random.default_rng(0)
    for columns, spec in [(16, P(None, "data")), (9, P("model", "data")), (9, P(None, ("data", "model")))]:
        x = rng.integers(-2, 3, (6, columns)).astype(np.float32)
        x[1], x[2, 1:] = neutral, neutral
        x[3, ::3], x[4, 5] = np.nan, np.nan
        put = sw.device_put(x, NamedSharding(mesh, spec))
        function = sw.jit(lambda x: getattr(jnp, name)(x, 1))
        np.testing.assert_array_equal(function(put), getattr(np, name)(x, 1))
