"""reshape of arrays whose minor dims are sharded: an all-to-all shards the major dim instead; nothing is gathered."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RAVELED = {
    "both dims": (P("data", "model"), (64, 48), {"all_to_all"}, ("data", "model")),
    "the minor dim": (P(None, "data"), (64, 48), {"all_to_all"}, ("data",)),
    "the major dim": (P("data"), (64, 48), set(), ("data",)),
    "three dims": (P(None, "data", "model"), (64, 8, 16), {"all_to_all"}, ("data", "model")),
    "uneven dims": (P("data", "model"), (63, 47), {"all_to_all", "take_window"}, ("data", "model")),
}


@pytest.mark.parametrize("name", RAVELED)
def test_ravel_keeps_arrays_sharded(mesh, name):
    spec, shape, kinds, axes = RAVELED[name]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    placed = sw.device_put(x, NamedSharding(mesh, spec))
    function = sw.jit(jnp.ravel)
    local = function.lower(placed)._prepared.stages.local
    assert {equation.op.name for equation in local.collectives()} == kinds
    assert sum(map(local.bytes_sent, local.collectives())) < x.nbytes / 4
    np.testing.assert_array_equal(evaluate_shards(local, [x])[0], x.ravel())
    result = function(placed)
    assert result.sharding.spec == P(axes if len(axes) > 1 else axes[0])
    np.testing.assert_array_equal(result, x.ravel())


def test_the_gradient_of_ravel_is_exchanged_too(mesh):
    x = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    placed = sw.device_put(x, NamedSharding(mesh, P("data", "model")))
    weights = sw.device_put(x.ravel(), NamedSharding(mesh, P(("data", "model"))))
    gradient = sw.jit(sw.grad(lambda x, weights: (jnp.ravel(x) ** 2 * weights).sum()))
    assert "all_gather" not in sw.explain(gradient)(placed, weights).counts()
    result = gradient(placed, weights)
    assert {"data", "model"} <= {axis for entry in result.sharding.spec if entry for axis in np.atleast_1d(entry)}
    np.testing.assert_array_equal(result, 2 * x * x)
