"""The transformer of `h200.py` in Flax NNX, trained by `nnx.Optimizer` with Optax's Adam.

`import jax` means the library that the process has chosen: JAX, or Shardwise after `shardwise.as_jax()`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.h200 import DECAY, EPSILON, RATE, SQUARE_DECAY, Model

BF16 = jax.numpy.bfloat16


class Layer(nnx.Module):
    """Causal attention and a feed-forward network, each after a normalization and inside a residual connection."""

    def __init__(self, model: Model, attention: str | None, rngs: nnx.Rngs):
        linear = partial(nnx.Linear, use_bias=False, dtype=BF16, rngs=rngs)
        self.heads, self.attention = model.heads, attention
        self.norm1 = nnx.RMSNorm(model.width, dtype=BF16, rngs=rngs)
        self.q, self.k, self.v, self.out = (linear(model.width, model.width) for _ in range(4))
        self.norm2 = nnx.RMSNorm(model.width, dtype=BF16, rngs=rngs)
        self.up = linear(model.width, model.hidden)
        self.down = linear(model.hidden, model.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.norm1(x)
        q, k, v = (project(h).reshape(*x.shape[:2], self.heads, -1) for project in (self.q, self.k, self.v))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.attention)
        x = x + self.out(attended.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """A language model with tied embeddings: the logits of the next word, for every word."""

    def __init__(self, model: Model, remat: bool, attention: str | None, rngs: nnx.Rngs):
        self.remat = remat
        self.embed = nnx.Embed(model.words, model.width, dtype=BF16, rngs=rngs)
        self.layers = nnx.List([Layer(model, attention, rngs) for _ in range(model.layers)])
        self.norm = nnx.RMSNorm(model.width, dtype=BF16, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        def apply(layer: Layer, x: jax.Array) -> jax.Array:
            return layer(x)

        x = self.embed(words)
        for layer in self.layers:
            x = (nnx.remat(apply) if self.remat else apply)(layer, x)
        return self.embed.attend(self.norm(x))


def training(model: Model, remat: bool, attention: str | None) -> Callable[[], Any]:
    """Create the model and its optimizer; return a function that makes a step and returns the loss."""
    rng = np.random.default_rng(0)

    def initial(parameter: jax.ShapeDtypeStruct) -> jax.Array:
        """Return random numbers of numpy, so that no random program is compiled for each matrix."""
        if len(parameter.shape) == 1:
            return jax.numpy.ones(parameter.shape, parameter.dtype)
        return jax.numpy.asarray(rng.standard_normal(parameter.shape, np.float32) / np.sqrt(parameter.shape[0]))

    network = nnx.eval_shape(lambda: Transformer(model, remat, attention, nnx.Rngs(0)))
    nnx.update(network, jax.tree.map(initial, nnx.state(network, nnx.Param)))
    optimizer = nnx.Optimizer(network, optax.adam(RATE, DECAY, SQUARE_DECAY, EPSILON), wrt=nnx.Param)

    @partial(nnx.jit, donate_argnums=(0, 1))
    def step(network: Transformer, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
        def loss(network: Transformer) -> jax.Array:
            logits = network(tokens[:, :-1]).astype(np.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, grads = nnx.value_and_grad(loss)(network)
        optimizer.update(network, grads)
        return value

    shape = (model.batch, model.length + 1)
    tokens = jax.numpy.asarray(rng.integers(0, model.words, shape).astype(np.int32))
    return lambda: step(network, optimizer, tokens)
