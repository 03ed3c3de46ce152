"""Equinox: the README's regression, `nn.MLP`, `filter_jit`, `filter_value_and_grad`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import report, shard


class Linear(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def __init__(self, in_size, out_size, key):
        weight_key, bias_key = jax.random.split(key)
        self.weight = jax.random.normal(weight_key, (out_size, in_size))
        self.bias = jax.random.normal(bias_key, (out_size,))

    def __call__(self, x):
        return self.weight @ x + self.bias


@eqx.filter_jit
@eqx.filter_value_and_grad
def loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


rng = np.random.default_rng(0)
x = shard(rng.normal(size=(32, 2)).astype(np.float32), "data")
y = shard(rng.normal(size=(32, 3)).astype(np.float32), "data")
value, grads = loss(Linear(2, 3, jax.random.PRNGKey(0)), x, y)
report("readme", [float(value), *np.asarray(grads.weight).ravel().tolist()])

model = eqx.nn.MLP(2, 3, 16, 2, activation=jax.nn.gelu, key=jax.random.key(1))
optimizer = optax.adam(1e-2)
state = optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_jit
def step(model, state, x, y):
    value, grads = loss(model, x, y)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(model, updates), state, value


losses = []
for _ in range(6):
    model, state, value = step(model, state, x, y)
    losses.append(float(value))
report("mlp", losses)
