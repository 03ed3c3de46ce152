"""Flax NNX (flax): Linear, LayerNorm, BatchNorm, Dropout, remat, `nnx.jit`, `nnx.value_and_grad`, `nnx.Optimizer`,
`nnx.with_partitioning` with sharded initialization.
"""

import jax
import numpy as np
import optax
from flax import nnx

from tests.ecosystem.report import mesh, report, shard, spec_text


class Block(nnx.Module):
    def __init__(self, width, hidden, rngs):
        column = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        row = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("model", None))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.batch_norm = nnx.BatchNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, hidden, kernel_init=column, rngs=rngs)
        self.down = nnx.Linear(hidden, width, kernel_init=row, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm(self.batch_norm(x))))))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(16, 32, rngs) for _ in range(2)])
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = nnx.remat(Block.__call__)(block, x)
        return self.out(x)


jax.set_mesh(mesh)


@nnx.jit
def create():
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


@nnx.jit
def step(model, optimizer, x, y):
    def loss(model):
        return ((model(x) - y) ** 2).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


model, optimizer = create()
rng = np.random.default_rng(0)
losses = []
for _ in range(6):
    x, y = rng.normal(size=(32, 16)), rng.normal(size=(32, 1))
    losses.append(
        float(step(model, optimizer, shard(x.astype(np.float32), "data"), shard(y.astype(np.float32), "data")))
    )
report("losses", losses)
report("mean", model.blocks[0].batch_norm.mean.get_value())
report("up", spec_text(model.blocks[0].up.kernel.get_value()))
moments = [leaf for leaf in jax.tree.leaves(nnx.state(optimizer)) if leaf.shape == (16, 32)]
report("moments of up", sorted({spec_text(moment) for moment in moments}))
