"""Flax NNX (flax): a training script with `nnx.ModelAndOptimizer` under `jax.jit` with shardings."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.ecosystem.report import report

# Step 1: the mesh.
num_devices = int(os.environ["ECOSYSTEM_DEVICES"])
devices = mesh_utils.create_device_mesh((4, 2) if num_devices == 8 else (1, 1))
mesh = Mesh(devices, axis_names=("data", "model"))


# Step 2: the shardings.
def create_sharding_specs(mesh):
    return {
        "data_parallel": NamedSharding(mesh, P("data", None)),
        "model_parallel": NamedSharding(mesh, P(None, "model")),
        "hybrid": NamedSharding(mesh, P("data", "model")),
        "replicated": NamedSharding(mesh, P()),
    }


shardings = create_sharding_specs(mesh)


class MyTransformer(nnx.Module):
    """Labels every token with one of ten classes."""

    def __init__(self, d_model, num_layers, rngs):
        self.embed = nnx.Embed(16, d_model, rngs=rngs)
        self.attention = nnx.List([nnx.MultiHeadAttention(2, d_model, decode=False, rngs=rngs)] * num_layers)
        self.out = nnx.Linear(d_model, 10, rngs=rngs)

    def __call__(self, input_ids):
        x = self.embed(input_ids)
        for attention in self.attention:
            x = x + attention(x)
        return self.out(x)


# Step 3: the parameters.
model = MyTransformer(d_model=16, num_layers=1, rngs=nnx.Rngs(0))
graphdef, params = nnx.split(model)


def shard_params(params, shardings):
    def shard_array(path, array):
        path_str = "/".join(str(p) for p in path)
        if "kernel" in path_str and array.shape[0] > 256:
            return jax.device_put(array, shardings["model_parallel"])
        return jax.device_put(array, shardings["replicated"])

    return jax.tree_util.tree_map_with_path(shard_array, params)


with mesh:
    params_sharded = shard_params(params, shardings)
model = nnx.merge(graphdef, params_sharded)


# Step 4: the training step.
def create_train_step(mesh, shardings):
    @partial(
        jax.jit,
        in_shardings=(shardings["replicated"], shardings["data_parallel"]),
        out_shardings=(shardings["replicated"], shardings["replicated"], shardings["replicated"]),
    )
    def train_step(state, batch):
        def loss_fn(model):
            logits = model(batch["input_ids"])
            labels_onehot = jax.nn.one_hot(batch["label"], num_classes=10)
            loss = optax.softmax_cross_entropy(logits, labels_onehot).mean()
            predictions = jnp.argmax(logits, axis=-1)
            accuracy = jnp.mean(predictions == batch["label"])
            return loss, {"accuracy": accuracy}

        grad_fn = nnx.value_and_grad(loss_fn, has_aux=True)
        (loss, metrics), grads = grad_fn(state.model)
        state.update(grads)
        return state, loss, metrics

    return train_step


# Step 5: the training loop. `nnx.Optimizer` of Flax before 0.11 is now `nnx.ModelAndOptimizer`: the script's one edit.
optimizer = optax.adam(learning_rate=1e-2)
state = nnx.ModelAndOptimizer(model, optimizer)
train_step = create_train_step(mesh, shardings)
rng = np.random.default_rng(0)
tokens = rng.integers(0, 10, (5, 8, 6)).astype(np.int32)
data_loader = [{"input_ids": batch, "label": batch} for batch in tokens]
losses, accuracies = [], []
with mesh:
    for batch in data_loader:
        batch_sharded = jax.tree.map(lambda x: jax.device_put(x, shardings["data_parallel"]), batch)
        state, loss, metrics = train_step(state, batch_sharded)
        losses.append(float(loss))
        accuracies.append(float(metrics["accuracy"]))
report("losses", losses)
report("accuracies", accuracies)
report("step", int(state.step.get_value()))
