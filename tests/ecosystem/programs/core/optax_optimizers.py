"""Optax: twelve optimizers, schedules, clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import report, shard

OPTIMIZERS = {
    "sgd": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(optax.cosine_decay_schedule(0.1, 20)),
    "adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05)),
    "adagrad": optax.adagrad(0.1),
    "adafactor": optax.adafactor(0.1),
    "lamb": optax.lamb(0.05),
    "lars": optax.lars(0.05),
    "lion": optax.lion(0.01),
    "rmsprop": optax.rmsprop(0.05, centered=True),
    "yogi": optax.yogi(0.05),
    "novograd": optax.novograd(0.05),
    "radam": optax.radam(0.05),
}
rng = np.random.default_rng(0)
x = shard(rng.normal(size=(32, 8)).astype(np.float32), "data")
y = shard((np.sin(np.asarray(x)).sum(1, keepdims=True)).astype(np.float32), "data")
start = {"w1": rng.normal(size=(8, 16)).astype(np.float32) / 3, "w2": rng.normal(size=(16, 1)).astype(np.float32) / 4}


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] - y) ** 2)


for name, optimizer in OPTIMIZERS.items():

    @jax.jit
    def step(params, state, x, y, optimizer=optimizer):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.tree.map(shard, start)
    state = optimizer.init(params)
    losses = []
    for _ in range(8):
        params, state, value = step(params, state, x, y)
        losses.append(float(value))
    report(name, losses)
