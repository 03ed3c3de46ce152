"""Adam for a pytree of parameters. The state has the parameters, so that one tree is trained, sharded and saved."""

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import random, strategies

DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.99, 1e-8


def init(params):
    """Return the state at step 0: parameters, moving averages of gradients and of their squares, and the step."""
    zeros = sw.tree.map(jnp.zeros_like, params)
    return {"params": params, "mean": zeros, "square": zeros, "count": jnp.zeros((), jnp.float32)}


def init_sharded(init_params, shard_params, seed=0):
    """Return the state at step 0 of new parameters, computed on the devices that hold it.

    `shard_params` returns the shardings of parameters for their types. The moving averages are sharded like these.
    """

    def shardings(types):
        return strategies.like_parameters(types, types["params"], shard_params(types["params"]))

    return strategies.initialize(lambda key: init(init_params(key)), shardings)(random.key(seed))


def update(state, grads, rate):
    """Return the state after one step with these gradients and this learning rate."""
    count = state["count"] + 1
    mean = sw.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, state["mean"], grads)
    square = sw.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, state["square"], grads)
    rate = rate * jnp.sqrt(1 - SQUARE_DECAY**count) / (1 - DECAY**count)
    params = sw.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + EPSILON), state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square, "count": count}
