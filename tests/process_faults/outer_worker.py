"""Train as one of several groups until a file appears: `outer_worker.py ticket group file`."""

import json
import sys
import time
from pathlib import Path

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import strategies

STEPS, PAUSE = 5, 0.02


def emit(name, **values):
    print(json.dumps({"event": name, **values}), flush=True)


def loss(w, x):
    return jnp.mean((x @ w - 1) ** 2)


@jax.jit
def train(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.05 * gradient, value


def main(ticket, group, file):
    exchange = strategies.OuterExchange(ticket, group)
    w = exchange.join(jnp.zeros(4))
    emit("joined", version=exchange.version, params=np.asarray(w).tolist())
    rng, value = np.random.default_rng(sum(map(ord, group))), None
    while not Path(file).exists():
        for _ in range(STEPS):
            w, value = train(w, jnp.asarray(rng.normal(size=(16, 4)) + 1, jnp.float32))
        w = exchange.exchange(w)
        emit("exchanged", version=exchange.version)
        time.sleep(PAUSE)
    exchange.close()
    emit("done", version=exchange.version, loss=float(value))


main(*sys.argv[1:])
