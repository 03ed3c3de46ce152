"""Strategies for memory: rematerialization, and optimizer state in host memory."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies
from shardwise.ad_checkpoint import checkpoint_name
from tests.strategies.test_activations import HIDDEN, LAYERS, PARAMS, X, close, loss_of, normalize


def test_policies_of_rematerialization_save_what_they_say(mesh):
    rules = {"up": P(None, "model"), "down": P("model", None)}
    params = sw.device_put(PARAMS, strategies.tensor_parallel(PARAMS, mesh, rules))
    x = sw.device_put(X, sw.NamedSharding(mesh, P("data")))
    expected = sw.grad(loss_of)(PARAMS, X)

    def layer(layer, x):
        return x + checkpoint_name(jnp.tanh(normalize(x) @ layer["up"]), "hidden") @ layer["down"]

    def saved(**options):
        """Return the bytes on one device that the backward pass of all layers reads, besides the arguments."""
        block = strategies.remat(layer, **options)

        def loss(params, x):
            for each in params:
                x = block(each, x)
            return jnp.mean(x**2)

        value, pullback = sw.jit(lambda params: sw.vjp(lambda params: loss(params, x), params))(params)
        close(sw.jit(lambda pullback, ct: pullback(ct))(pullback, jnp.ones_like(value))[0], expected)
        given = {leaf.shape for leaf in sw.tree.leaves(params)}
        leaves = [leaf for leaf in sw.tree.leaves(pullback) if leaf.shape not in given and leaf.size > 1]
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)

    hidden = LAYERS * 2 * 16 * (HIDDEN // 2) * 4  # rows, positions and features of one device
    assert saved(names=("hidden",)) == saved(save="dots") == saved() + hidden < saved(save="everything")


def test_state_in_host_memory(mesh):
    state = {"mu": np.ones((8, 16), np.float32), "count": np.int32(0), "name": None}
    device = strategies.fsdp(state, mesh, min_size=0)
    host = strategies.offload(device)
    assert host["mu"].spec == device["mu"].spec and host["mu"].memory_kind == "pinned_host"
    placed = sw.device_put(state, host)
    step = sw.jit(lambda s: {**s, "mu": 0.9 * s["mu"], "count": s["count"] + 1}, out_shardings=host)
    after = step(step(placed))
    assert after["mu"].sharding == host["mu"] and int(after["count"]) == 2
    np.testing.assert_allclose(after["mu"], 0.81 * state["mu"], rtol=1e-6)
