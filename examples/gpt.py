"""Train a small GPT, written as plain functions, on the text in the repository.

    python examples/gpt.py                           8 virtual devices, mesh data=4, model=2
    python examples/gpt.py --mesh data=2,model=4     another mesh: continues from the checkpoint of the first run
    python examples/gpt.py --devices 1 --fresh       one device, from the beginning

The batch is sharded over `data`; heads, hidden units and the vocabulary over `model`. The functions of the model have
no sharding annotations: Shardwise derives all shardings from those of the arguments.
"""

from functools import partial

import adam
from characters import VOCABULARY, sequences
from training_run import Run

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import data, lax, nn, random, strategies
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

LAYERS, WIDTH, HEADS, HIDDEN = 2, 64, 4, 256
BATCH, LENGTH, RATE = 16, 64, 3e-3
RULES = {"embed|out|down": P("model", None), "query|key|value|up": P(None, "model")}  # by names of parameters


def init_params(key):
    """Return the parameters: a dict of arrays."""
    keys = iter(random.split(key, 2 + 6 * LAYERS))

    def normal(rows, columns):
        return random.normal(next(keys), (rows, columns)) * WIDTH**-0.5

    def layer():
        return {
            **{name: normal(WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
            "up": normal(WIDTH, HIDDEN),
            "down": normal(HIDDEN, WIDTH) / 2,
            "norm1": jnp.ones(WIDTH),
            "norm2": jnp.ones(WIDTH),
        }

    return {
        "embed": normal(VOCABULARY, WIDTH),
        "positions": normal(LENGTH, WIDTH),
        "layers": [layer() for _ in range(LAYERS)],
        "norm": jnp.ones(WIDTH),
    }


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(weights, x):
    """Return causal attention with several heads."""
    query, key, value = (
        (x @ weights[name]).reshape(*x.shape[:2], HEADS, WIDTH // HEADS) for name in ("query", "key", "value")
    )
    return nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape) @ weights["out"]


def mlp(weights, x):
    return nn.gelu(x @ weights["up"]) @ weights["down"]


def predict(params, tokens):
    """Return the logits of the next character at every position."""
    x = params["embed"][tokens] + params["positions"][: tokens.shape[1]]
    for weights in params["layers"]:
        x = x + attention(weights, rms_norm(x, weights["norm1"]))
        x = x + mlp(weights, rms_norm(x, weights["norm2"]))
    return rms_norm(x, params["norm"]) @ params["embed"].T


def cross_entropy(logits, targets):
    """Return the mean cross entropy of the targets, in nats."""
    return jnp.mean(nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0])


def loss(params, tokens):
    return cross_entropy(predict(params, tokens[:, :-1]), tokens[:, 1:])


@partial(sw.jit, donate_argnums=0)
def train_step(state, tokens):
    """Do one step of Adam; return the new state and the loss."""
    value, grads = sw.value_and_grad(loss)(state["params"], tokens)
    return adam.update(state, grads, RATE), value


def init_state(mesh):
    """Return the state of the training, computed on the devices that hold it."""
    return adam.init_sharded(init_params, lambda types: strategies.tensor_parallel(types, mesh, RULES))


def batches(mesh):
    """Return an iterator of batches of the text, shuffled in every epoch and sharded over `data`."""
    sharding = NamedSharding(mesh, P("data"))
    return data.BatchIterator(sequences(LENGTH), sharding, batch_size=BATCH, seed=0, epochs=None)


def main(arguments=None):
    run = Run.from_command_line("gpt", __doc__, arguments, axes=("data", "model"), steps=300)
    return run.train(train_step, init_state(run.mesh), batches(run.mesh), items=BATCH * LENGTH)


if __name__ == "__main__":
    main()
