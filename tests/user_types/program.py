"""A user's program without mistakes. `assert_type` states the types that checkers must infer."""

from functools import partial
from typing import Any, assert_type

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import Array, lax, nn, random
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

# Functions return arrays, which have methods and operators.
x = jnp.arange(16.0).reshape(4, 4)
assert_type(x, Array)
assert_type(jnp.sin(x), Array)
assert_type(jnp.add(x, 1), Array)
assert_type(jnp.where(x > 0, x, 0.0), Array)
assert_type(jnp.linspace(0, 1, 5), Array)
assert_type(jnp.average(x), Array)
assert_type(jnp.unique(x), Array)
assert_type(jnp.atleast_2d(x), Array)
assert_type(jnp.nonzero(x), tuple[Array, ...])
assert_type(jnp.concatenate([x, x]), Array)
assert_type(jnp.einsum("ij,kj->ik", x, x), Array)
assert_type(jnp.linalg.norm(x), Array)
assert_type(jnp.linalg.svd(x, compute_uv=False), Array)
assert_type(jnp.linalg.qr(x).Q, Array)
assert_type(jnp.fft.fft(x), Array)
assert_type(lax.exp(x), Array)
assert_type(lax.dot(x, x.T), Array)
assert_type(lax.stop_gradient({"x": x}), dict[str, Array])
assert_type(nn.softmax(x), Array)
assert_type(nn.logsumexp(x), Array)
assert_type(random.normal(random.key(0), (2,)), Array)
assert_type(jax.scipy.special.gammaln(x), Array)
assert_type(x.sum().astype(jnp.float32), Array)
assert_type(x.at[0].set(1), Array)
assert_type(x.sum(axis=0).astype(jnp.int32).at[0].add(1).T, Array)
assert_type(x + 1, Array)
assert_type(2 * x, Array)
assert_type(-x @ x.T, Array)
assert_type(x == 1, Array)
assert_type(x[0, 1:], Array)
assert_type([row for row in x], list[Array])
assert_type(x.shape, tuple[int, ...])
assert_type(x.block_until_ready(), Array)
assert_type(float(x.max()), float)
assert_type(len(x), int)
host = np.asarray(x)
is_replicated: bool = x.is_fully_replicated
shards = [shard.data for shard in x.addressable_shards]


# Transformations keep the parameters of functions.
@jax.jit
def scale(x: Array, factor: float = 2.0) -> Array:
    return x * factor


@jax.jit(static_argnames="power", donate_argnums=0)
def raised(x: Array, power: int) -> Array:
    return x**power


@partial(jax.jit, static_argnums=1)
def rolled(x: Array, shift: int) -> Array:
    return jnp.roll(x, shift)


@jax.custom_jvp
def identity(x: Array) -> Array:
    return x


@identity.defjvp
def identity_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], tangents[0]


@jax.checkpoint
def block(x: Array) -> Array:
    return jnp.tanh(identity(x))


def loss(parameters: dict[str, Array], x: Array) -> Array:
    return jnp.mean(block(x @ parameters["w"]) ** 2)


class Model:
    @jax.jit(static_argnums=0)
    def apply(self, x: Array) -> Array:
        return x


mesh = jax.make_mesh((4, 2), ("data", "model"))
sharding = NamedSharding(mesh, P("data"))
assert_type(scale(x, factor=3.0), Array)
assert_type(raised(x + 1, power=2), Array)
rolled(x, 1)
assert_type(identity(x), Array)
assert_type(block(x), Array)
assert_type(jax.vmap(block)(x), Array)
assert_type(jax.grad(loss)({"w": x.T}, x), Any)
assert_type(jax.value_and_grad(loss)({"w": x.T}, x), tuple[Any, Any])
assert_type(scale.lower(x).compile().as_text(), str)
assert_type(scale.trace(x).fun_name, str)
assert_type(jax.shard_map(block, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x), Array)
Model().apply(x)
jax.device_put(x, sharding)
assert_type(lax.with_sharding_constraint(x, sharding), Array)
total, products = lax.scan(lambda carry, row: (carry + row, carry * row), jnp.zeros(4), x)


# A pytree may hold anything. Functions that keep its types return what they accept.
weights = {"w": x}
assert_type(jax.block_until_ready(weights), dict[str, Array])
assert_type(jax.strategies.select(x[0, 0] > 0, weights, {"w": -x}), dict[str, Array])
assert_type(jax.strategies.mixed_precision(loss)({"w": x.T}, x), Array)
jax.device_put({"w": x, "step": 3}, {"w": sharding, "step": None})
jax.eval_shape(loss, {"w": jax.ShapeDtypeStruct((4, 4), jnp.float32)}, x)
lax.cond(x[0, 0] > 0, lambda tree: tree, lambda tree: {"w": -tree["w"]}, weights)
lax.fori_loop(0, np.int32(3), lambda index, total: total + index, 0)
jax.debug.print("{} {name}", x[0], name="a text")

# Refs are indexed like arrays, and read as arrays.
ref = jax.new_ref(x)
ref[0, 1:] = 1
ref[...] += x
assert_type(ref[0], Array)
