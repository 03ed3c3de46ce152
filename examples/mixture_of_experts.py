"""Train a GPT whose MLPs are mixtures of experts, sharded over a mesh axis.

    python examples/mixture_of_experts.py                            mesh data=4, expert=2: 4 experts per device
    python examples/mixture_of_experts.py --mesh data=1,expert=8     continues with one expert per device

The batch is sharded over both axes. Each token goes to the 2 experts that its router chooses: an all-to-all exchange
sends it to their devices and another one brings the results back. No token is dropped.
"""

from functools import partial

import adam
import gpt
from characters import sequences
from training_run import Run

import shardwise as sw
from shardwise import data, parallel, random, strategies
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

EXPERTS, CHOICES, HIDDEN = 8, 2, 64
BATCH, RATE = 16, 3e-3
BALANCE, Z_LOSS = 0.01, 1e-3  # keep the experts equally busy, and the router's logits small


def init_params(key):
    """Return the parameters of a GPT, with a router and experts in place of the MLP of each layer."""
    params = gpt.init_params(key)
    for index, weights in enumerate(params["layers"]):
        keys = random.split(random.fold_in(key, index), 4)
        shapes = {"gate": (gpt.WIDTH, HIDDEN), "up": (gpt.WIDTH, HIDDEN), "down": (HIDDEN, gpt.WIDTH)}
        del weights["up"], weights["down"]
        weights["router"] = random.normal(keys[0], (gpt.WIDTH, EXPERTS)) * gpt.WIDTH**-0.5
        weights["experts"] = {
            name: random.normal(key, (EXPERTS, *shape)) * shape[0] ** -0.5
            for key, (name, shape) in zip(keys[1:], shapes.items(), strict=True)
        }
    return params


def mixture(weights, x, mesh):
    """Return the results of the experts of each token, and the losses of the router."""
    y, routing = parallel.mixture_of_experts(
        x, x @ weights["router"], weights["experts"], k=CHOICES, axis="expert", batch_axes="data", mesh=mesh
    )
    return y, BALANCE * routing.balance_loss + Z_LOSS * routing.z_loss


def loss(params, tokens, mesh):
    """Return the cross entropy and the losses of all routers."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embed"][inputs] + params["positions"]
    router_losses = 0.0
    for weights in params["layers"]:
        x = x + gpt.attention(weights, gpt.rms_norm(x, weights["norm1"]))
        y, router_loss = mixture(weights, gpt.rms_norm(x, weights["norm2"]), mesh)
        x, router_losses = x + y, router_losses + router_loss
    logits = gpt.rms_norm(x, params["norm"]) @ params["embed"].T
    return gpt.cross_entropy(logits, targets) + router_losses


def make_train_step(mesh):
    """Return the training step on a mesh, over whose axis `expert` tokens are exchanged."""

    @partial(sw.jit, donate_argnums=0)
    def train_step(state, tokens):
        value, grads = sw.value_and_grad(loss)(state["params"], tokens, mesh)
        return adam.update(state, grads, RATE), value

    return train_step


def init_state(mesh):
    """Return the state of the training: experts sharded over `expert`, the rest replicated."""
    return adam.init_sharded(init_params, lambda types: strategies.expert_parallel(types, mesh, "experts/"))


def batches(mesh):
    """Return an iterator of batches of the text, sharded over both axes."""
    sharding = NamedSharding(mesh, P(("data", "expert")))
    return data.BatchIterator(sequences(gpt.LENGTH), sharding, batch_size=BATCH, seed=0, epochs=None)


def main(arguments=None):
    run = Run.from_command_line("mixture_of_experts", __doc__, arguments, axes=("data", "expert"), steps=200)
    step, state = make_train_step(run.mesh), init_state(run.mesh)
    return run.train(step, state, batches(run.mesh), items=BATCH * gpt.LENGTH)


if __name__ == "__main__":
    main()
