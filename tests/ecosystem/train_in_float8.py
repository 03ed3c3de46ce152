"""Train Flax models, whose layers have a `dot_general` of their own, with an FP8Policy under FSDP; print reports.

shardwise run tests/ecosystem/train_in_float8.py
"""

import contextlib
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise
from shardwise import strategies

STEPS = 30


def dot_general(x, y, dimension_numbers, precision=None, preferred_element_type=None, **options):
    """A product with sums in float32."""
    result = lax.dot_general(x, y, dimension_numbers, precision=precision, preferred_element_type=jnp.float32)
    return result.astype(x.dtype)


class LinenModel(linen.Module):
    """A residual block and a head."""

    @linen.compact
    def __call__(self, x):
        h = linen.Dense(64, dot_general=dot_general, name="up")(x)
        h = linen.Dense(32, dot_general=dot_general, name="down")(linen.gelu(h))
        return linen.Dense(8, dot_general=dot_general, name="head")(x + h)


class NnxModel(nnx.Module):
    """The same block and head."""

    def __init__(self, rngs):
        self.up = nnx.Linear(32, 64, dot_general=dot_general, rngs=rngs)
        self.down = nnx.Linear(64, 32, dot_general=dot_general, rngs=rngs)
        self.head = nnx.Linear(32, 8, dot_general=dot_general, rngs=rngs)

    def __call__(self, x):
        return self.head(x + self.down(nnx.gelu(self.up(x))))


def create(kind):
    """Return the parameters, and the function (parameters, x) → the result."""
    if kind == "linen":
        model = LinenModel()
        return model.init(jax.random.key(0), jnp.ones((1, 32))), model.apply
    graph, params = nnx.split(NnxModel(nnx.Rngs(0)))
    return params, lambda params, x: nnx.merge(graph, params)(x)


def report(kind):
    """Train in float8 and in float32, and return the losses, the products and the plan."""
    params, apply = create(kind)

    def loss(params, x, y):
        return jnp.mean((apply(params, x) - y).astype(jnp.float32) ** 2)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 32)).astype(np.float32)
    y = np.tanh(x @ rng.standard_normal((32, 8)).astype(np.float32) / 6)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x, y = jax.device_put((x, y), NamedSharding(mesh, P("data")))
    params = jax.tree.map(jax.device_put, params, strategies.fsdp(params, mesh, "data", min_size=0))
    policy = strategies.FP8Policy()
    scales = jax.device_put(policy.create(loss, params, x, y), NamedSharding(mesh, P()))
    fp8_loss = strategies.mixed_precision(loss, policy)

    def step(params, scales, x, y):
        value, (grads, maxima) = jax.value_and_grad(fp8_loss, (0, 1))(params, scales, x, y)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, grads), scales.update(maxima), value

    def float32_step(params, scales, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, grads), scales, value

    def losses(function):
        train, state, values = jax.jit(function), (params, scales), []
        for _ in range(STEPS):
            *state, value = train(*state, x, y)
            values.append(float(value))
        return values

    with contextlib.redirect_stdout(io.StringIO()):
        plan = shardwise.explain(step, hardware="h200", advise=False)(params, scales, x, y)
    return {
        "kind": kind,
        "products": sorted(scales.scales),
        "float8": losses(step),
        "float32": losses(float32_step),
        "reduced maxima": [row.type for row in plan.collectives if row.kind == "all_reduce"],
        "plan": str(plan),
    }


if __name__ == "__main__":
    for name in ("linen", "nnx"):
        print(json.dumps(report(name)))
