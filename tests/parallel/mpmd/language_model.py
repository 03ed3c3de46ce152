"""A small language model as unequal stages: embedding on the first, head and loss on the last."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax

VOCABULARY, WIDTH, ROWS = 11, 6, 16


def layers(weights, x):
    return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights)[0]


def first(params, tokens):
    return layers(params["layers"], params["table"][tokens])


def middle(params, x):
    return layers(params["layers"], x)


def last(params, x, targets):
    logits = layers(params["layers"], x) @ params["head"]
    chosen = jnp.take_along_axis(logits, targets[:, None], 1)[:, 0]
    return (sw.scipy.special.logsumexp(logits, -1) - chosen).mean()


def stages_and_params(counts, seed=0):
    """Return the stages with these numbers of layers, and their parameters as numpy arrays."""
    rng = np.random.default_rng(seed)
    params = [{"layers": rng.normal(size=(count, WIDTH, WIDTH)).astype(np.float32) / 3} for count in counts]
    params[0]["table"] = rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    params[-1]["head"] = rng.normal(size=(WIDTH, VOCABULARY)).astype(np.float32)
    return [first, *[middle] * (len(counts) - 2), last], params


def batch(seed=1):
    return np.random.default_rng(seed).integers(0, VOCABULARY, size=(2, ROWS)).astype(np.int32)


def on_one_device(stages, params, tokens, targets):
    """Return the loss and the gradients of the stages in sequence, as numpy arrays."""

    def loss(params):
        x = tokens
        for stage, each in zip(stages[:-1], params[:-1], strict=True):
            x = stage(each, x)
        return stages[-1](params[-1], x, targets)

    value, gradients = sw.jit(sw.value_and_grad(loss))(params)
    return float(value), sw.tree_util.tree_map(np.asarray, gradients)
