"""Cases: train a small MLP under data, fully sharded, tensor and 2D parallelism, on all devices of the cluster.

The batch has 30 rows, and the hidden dim 20 columns, which 8 devices do not divide.
"""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

STEPS = 4

# For each kind of parallelism: the mesh for n devices, and the specs of batch and parameters.
KINDS = {
    "data": (lambda n: ((n,), ("data",)), P("data"), {"w1": P(), "b1": P(), "w2": P()}),
    "fully_sharded": (
        lambda n: ((n,), ("data",)),
        P("data"),
        {"w1": P("data"), "b1": P("data"), "w2": P(None, "data")},
    ),
    "tensor": (lambda n: ((n,), ("model",)), P(), {"w1": P(None, "model"), "b1": P("model"), "w2": P("model")}),
    "two_dims": (
        lambda n: ((n // 2, 2), ("data", "model")),
        P("data"),
        {"w1": P("data", "model"), "b1": P("model"), "w2": P("model", "data")},
    ),
}


def train(kind: str) -> list[float]:
    """Return the loss of each step, on the mesh of all devices."""
    mesh_of, batch_spec, specs = KINDS[kind]
    mesh = sw.make_mesh(*mesh_of(sw.device_count()))
    random = np.random.default_rng(0)
    shapes = {"w1": (12, 20), "b1": (20,), "w2": (20, 8)}
    params = {name: random.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    params = {name: sw.device_put(x, NamedSharding(mesh, specs[name])) for name, x in params.items()}
    momentum = sw.tree.map(jnp.zeros_like, params)
    data = random.normal(size=(30, 12)).astype(np.float32)
    batch = [sw.device_put(x, NamedSharding(mesh, batch_spec)) for x in (data, np.sin(data[:, :8]))]

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return ((hidden @ params["w2"] - y) ** 2).mean()

    @sw.jit
    def step(params, momentum, x, y):
        value, gradients = sw.value_and_grad(loss)(params, x, y)
        momentum = sw.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return sw.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    losses = []
    for _ in range(STEPS):
        params, momentum, value = step(params, momentum, *batch)
        losses.append(float(value))
    return losses


def case_data():
    return train("data")


def case_fully_sharded():
    return train("fully_sharded")


def case_tensor():
    return train("tensor")


def case_two_dims():
    return train("two_dims")
