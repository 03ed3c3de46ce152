"""Finetune a GPT from a safetensors file with low-rank adapters (LoRA).

    python examples/lora.py                            trains a base model, writes base.safetensors, and finetunes it
    python examples/lora.py --base my.safetensors      finetunes the model of a file with the same names and shapes
    python examples/lora.py --mesh data=1,model=8      continues on another mesh

The base model is read from the file straight to the devices that hold its shards, and stays frozen. Every matrix W
gets two small factors, W + A·B, which are trained to continue the text backwards. Checkpoints have the adapters only.
"""

from functools import partial
from pathlib import Path

import adam
import gpt
from characters import sequences
from training_run import Run

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints, data, random, strategies, tree_util
from shardwise.errors import CheckpointMismatch
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RANK, RATE, BASE_STEPS = 8, 1e-2, 100
# A factor is sharded along the dim that it shares with the matrix, as the matrix is.
RULES = {"(out|down)/a": P("model", None), "(query|key|value|up)/b": P(None, "model")}
ADAPTED = ("query", "key", "value", "out", "up", "down")


def write_base(file, mesh, steps):
    """Train a GPT for some steps, and write its parameters to a safetensors file."""
    state = gpt.init_state(mesh)
    for _, tokens in zip(range(steps), gpt.batches(mesh), strict=False):
        state, _ = gpt.train_step(state, tokens)
    folder = file.with_suffix("")
    checkpoints.save(folder, state["params"]).wait()
    checkpoints.export_safetensors(folder, file)


def read_base(file, mesh):
    """Return the parameters of a safetensors file, sharded over the mesh. Only the shards of a device are read.

    Raises:
        CheckpointMismatch: if the file has other names or shapes than the model.
    """
    arrays = checkpoints.read_safetensors(file)
    types = sw.eval_shape(gpt.init_params, random.key(0))
    shardings = strategies.tensor_parallel(types, mesh, gpt.RULES)
    names = tree_util.tree_map_with_path(lambda path, _: tree_util.keystr(path, simple=True, separator="."), types)
    differences = tuple(
        f"{name!r} has shape {type.shape} in the model, and {arrays[name].shape if name in arrays else 'is not'} there"
        for name, type in zip(sw.tree.leaves(names), sw.tree.leaves(types), strict=True)
        if name not in arrays or arrays[name].shape != type.shape
    )
    if differences:
        raise CheckpointMismatch(f"{file} is of another model: {'; '.join(differences)}", differences)

    def read(name, type, sharding):
        return sw.make_array_from_callback(type.shape, sharding, lambda index: arrays[name][index])

    return sw.tree.map(read, names, types, shardings)


def init_adapters(key):
    """Return the factors A and B of every matrix. B is zero, so that training begins at the base model."""
    shapes = sw.eval_shape(gpt.init_params, key)["layers"]

    def factors(key, shape):
        return {"a": random.normal(key, (shape[0], RANK)) * shape[0] ** -0.5, "b": jnp.zeros((RANK, shape[1]))}

    keys = [random.split(each, len(ADAPTED)) for each in random.split(key, gpt.LAYERS)]
    return [
        {name: factors(key, weights[name].shape) for name, key in zip(ADAPTED, keys[index], strict=True)}
        for index, weights in enumerate(shapes)
    ]


def adapted(params, adapters):
    """Return the parameters of the model with adapters."""
    layers = [
        {**weights, **{name: weights[name] + factors["a"] @ factors["b"] for name, factors in layer.items()}}
        for weights, layer in zip(params["layers"], adapters, strict=True)
    ]
    return {**params, "layers": layers}


def make_train_step(base):
    """Return the training step of the adapters of a base model, which is a constant of the step."""

    @partial(sw.jit, donate_argnums=0)
    def train_step(state, tokens):
        value, grads = sw.value_and_grad(lambda adapters: gpt.loss(adapted(base, adapters), tokens))(state["params"])
        return adam.update(state, grads, RATE), value

    return train_step


def init_state(mesh):
    """Return the adapters and their optimizer state, sharded like the matrices."""
    return adam.init_sharded(init_adapters, lambda types: strategies.tensor_parallel(types, mesh, RULES), seed=1)


def batches(mesh):
    """Return an iterator of batches of the text, read backwards."""
    source, sharding = sequences(gpt.LENGTH)[:, ::-1], NamedSharding(mesh, P("data"))
    return data.BatchIterator(source, sharding, batch_size=gpt.BATCH, seed=0, epochs=None)


def main(arguments=None):
    def add_arguments(parser):
        parser.add_argument("--base", type=Path, help="a safetensors file; by default one that this program writes")
        parser.add_argument(
            "--base-steps", type=int, default=BASE_STEPS, help="the training of the base, if it writes one"
        )

    run = Run.from_command_line(
        "lora", __doc__, arguments, axes=("data", "model"), steps=100, add_arguments=add_arguments
    )
    file = run.options.base or run.folder / "base.safetensors"
    if run.options.base is None and not file.exists():
        run.print(f"train the base model for {run.options.base_steps} steps, and write {file}")
        write_base(file, run.mesh, run.options.base_steps)
    base, state = read_base(file, run.mesh), init_state(run.mesh)
    count = sum(x.size for x in sw.tree.leaves(state["params"]))
    run.print(f"{count:,} trained parameters beside {sum(x.size for x in sw.tree.leaves(base)):,} frozen ones")
    return run.train(make_train_step(base), state, batches(run.mesh), items=gpt.BATCH * gpt.LENGTH)


if __name__ == "__main__":
    main()
