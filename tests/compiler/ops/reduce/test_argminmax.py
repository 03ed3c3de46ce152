"""argmax and argmin: ties, NaN, and sharded dims."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SPECS = [P("data", "model"), P("model"), P(None, ("data", "model")), P(("model", "data"))]


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


@pytest.mark.parametrize("shape", [(8, 6), (7, 5)], ids=["even", "uneven"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_flattened_index_of_an_extremum_needs_one_pair_per_device(mesh, name, spec, shape):
    rng = np.random.default_rng(3)
    function = sw.jit(getattr(jnp, name))
    for x in (
        rng.normal(size=shape).astype(np.float32),
        rng.integers(0, 3, shape).astype(np.float32),  # ties: the first in row-major order
        np.where(rng.random(shape) < 0.2, np.nan, rng.normal(size=shape)).astype(np.float32),
        np.full(shape, np.nan, np.float32),
        np.full(shape, np.inf if name == "argmin" else -np.inf, np.float32),  # as the padding
    ):
        placed = sw.device_put(x, NamedSharding(mesh, spec))
        assert int(function(placed)) == getattr(np, name)(x)
    plan = sw.explain(function)(placed)
    assert plan.counts() == {"all_gather": 2}  # values and indices
    assert all(row.sent <= 7 * 4 for row in plan.collectives)


def test_three_dims_with_one_of_them_unsharded(mesh):
    x = np.random.default_rng(4).integers(0, 50, (4, 3, 6)).astype(np.int32)
    placed = sw.device_put(x, NamedSharding(mesh, P("data", None, "model")))
    assert int(sw.jit(jnp.argmax)(placed)) == np.argmax(x)
    kept = sw.jit(lambda x: jnp.argmin(x, keepdims=True))(placed)
    np.testing.assert_array_equal(kept, np.argmin(x, keepdims=True))
    batched = sw.jit(sw.vmap(jnp.argmax))(placed)
    np.testing.assert_array_equal(batched, [np.argmax(rows) for rows in x])


def test_a_scalar_is_its_own_extremum():
    assert int(jnp.argmax(jnp.float32(3))) == 0
    assert jnp.argmin(jnp.float32(3), keepdims=True).shape == ()
