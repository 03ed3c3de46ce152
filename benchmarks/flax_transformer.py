"""A transformer in Flax NNX, trained by nnx.Optimizer with AdamW: one program for Shardwise and for JAX.

`import jax` and `from flax import nnx` mean whichever library the process has chosen (`python -m shardwise run`).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

DATA, MODEL = "data", "model"
BOTH = (DATA, MODEL)


@final
@dataclass(frozen=True)
class Parallel:
    """The mesh axes of the batch, of every weight (FSDP), and of heads and hidden features (tensor parallel)."""

    batch: Any = None
    weights: Any = None
    tensor: Any = None


KINDS = {
    "data parallel": Parallel(batch=BOTH),
    "FSDP": Parallel(batch=BOTH, weights=BOTH),
    "tensor parallel": Parallel(batch=DATA, tensor=MODEL),
    "FSDP × tensor": Parallel(batch=DATA, weights=DATA, tensor=MODEL),
}


@final
@dataclass(frozen=True)
class Sizes:
    """The sizes of a model and of its batches."""

    layers: int = 2
    batch: int = 16
    length: int = 16
    width: int = 32
    heads: int = 4
    hidden: int = 64
    words: int = 64


def make_mesh(devices: int) -> Any:
    """Return the mesh: 4×2 for eight devices, 1×1 for one."""
    sizes = {8: (4, 2), 1: (1, 1)}[devices]
    return jax.make_mesh(sizes, BOTH, axis_types=(AxisType.Auto, AxisType.Auto))


def initializer(*axes: Any) -> Any:
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)


class Block(nnx.Module):
    """Causal attention and a feed-forward network, each after a normalization and inside a residual connection."""

    def __init__(self, sizes: Sizes, parallel: Parallel, rngs: nnx.Rngs):
        weights, tensor = parallel.weights, parallel.tensor
        self.norm1 = nnx.LayerNorm(sizes.width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            sizes.heads,
            sizes.width,
            kernel_init=initializer(weights, tensor, None),
            out_kernel_init=initializer(tensor, None, weights),
            use_bias=False,
            decode=False,
            rngs=rngs,
        )
        self.norm2 = nnx.LayerNorm(sizes.width, rngs=rngs)
        self.up = nnx.Linear(
            sizes.width, sizes.hidden, use_bias=False, kernel_init=initializer(weights, tensor), rngs=rngs
        )
        self.down = nnx.Linear(
            sizes.hidden, sizes.width, use_bias=False, kernel_init=initializer(tensor, weights), rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """A language model: the logits of the next word, for every word."""

    def __init__(self, sizes: Sizes, parallel: Parallel, rngs: nnx.Rngs):
        embedding = nnx.with_partitioning(nnx.initializers.normal(0.02), (parallel.weights, None))
        self.embed = nnx.Embed(sizes.words, sizes.width, embedding_init=embedding, rngs=rngs)
        self.blocks = nnx.List([Block(sizes, parallel, rngs) for _ in range(sizes.layers)])
        self.norm = nnx.LayerNorm(sizes.width, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.norm(x))


@partial(nnx.jit, static_argnums=(0, 1))
def create(sizes: Sizes, parallel: Parallel) -> tuple[Transformer, nnx.Optimizer]:
    """Initialize the model and its optimizer. Only the parameters have shardings."""
    model = Transformer(sizes, parallel, nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


@nnx.jit
def train_step(model: Transformer, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    """Update the model and the optimizer in place; return the loss."""

    def loss(model: Transformer) -> jax.Array:
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def batches(sizes: Sizes, parallel: Parallel, mesh: Any, count: int) -> list[jax.Array]:
    """Return sharded batches of tokens: each next word is the word before plus one or two."""
    rng = np.random.default_rng(0)
    sharding = NamedSharding(mesh, P(parallel.batch))
    result = []
    for _ in range(count):
        steps = rng.integers(1, 3, (sizes.batch, sizes.length + 1))
        result.append(jax.device_put((steps.cumsum(1) % sizes.words).astype(np.int32), sharding))
    return result
