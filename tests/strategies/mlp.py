"""A small MLP, and the comparison of its gradients."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P

RNG = np.random.default_rng(0)
PARAMS = {
    "up": (RNG.normal(size=(32, 64)) * 0.1).astype(np.float32),
    "down": (RNG.normal(size=(64, 32)) * 0.1).astype(np.float32),
}
X, Y = RNG.normal(size=(2, 32, 32)).astype(np.float32)


def loss_of(params, x, y):
    out = jnp.tanh(x @ params["up"]) @ params["down"]
    return jnp.mean((out - y).astype(jnp.float32) ** 2)


def on_mesh(mesh, axis=None):
    """Return the parameters, sharded over an axis or replicated, and a batch whose rows are sharded."""
    rows = sw.NamedSharding(mesh, P("data"))
    return sw.device_put(PARAMS, sw.NamedSharding(mesh, P(axis))), sw.device_put(X, rows), sw.device_put(Y, rows)


def close(found, expected, **tolerance):
    sw.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)
