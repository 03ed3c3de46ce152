"""Flax linen (flax): Conv, Dense, LayerNorm, BatchNorm, `nn.scan`, mutable collections, RNN with LSTMCell."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import report, shard


class Layer(nn.Module):
    @nn.compact
    def __call__(self, carry, _):
        return carry + nn.Dense(16)(nn.relu(nn.LayerNorm()(carry))), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, images, train):
        x = nn.relu(nn.Conv(8, (3, 3))(images))
        x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(len(images), -1)
        x = nn.Dense(16)(x)
        layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = layers()(x, None)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(4)(x)


rng = np.random.default_rng(0)
images = shard(rng.normal(size=(16, 8, 8, 3)).astype(np.float32), "data")
labels = shard(rng.integers(0, 4, 16), "data")
model = Model()
variables = jax.jit(model.init, static_argnums=2)(jax.random.key(0), images, True)
optimizer = optax.sgd(0.05, momentum=0.9)  # Adam amplifies the noise of gradients that are zero, before BatchNorm
state = optimizer.init(variables["params"])


@jax.jit
def step(variables, state):
    def loss(params):
        logits, changes = model.apply({**variables, "params": params}, images, True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changes

    (value, changes), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    updates, state = optimizer.update(grads, state)
    return {"params": optax.apply_updates(variables["params"], updates), **changes}, state, value


losses = []
for _ in range(5):
    variables, state, value = step(variables, state)
    losses.append(float(value))
report("losses", losses)
report("table", jnp.float32(sum(x.size for x in jax.tree.leaves(variables))))


# The weights of a recurrent network are the same in all steps: `nn.scan` looks for them in its body.
recurrent = nn.RNN(nn.LSTMCell(8))
sequences = shard(rng.normal(size=(16, 5, 4)).astype(np.float32), "data")
weights = jax.jit(recurrent.init)(jax.random.key(1), sequences)
grads = jax.jit(jax.grad(lambda weights: (recurrent.apply(weights, sequences) ** 2).mean()))(weights)
report("recurrent network", [float(jnp.abs(x).sum()) for x in jax.tree.leaves(grads)])
