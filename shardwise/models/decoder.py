"""A decoder as plain functions: its weights as a tree, its loss, and a training step with Adam."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import DTypeLike

Weights = dict[str, Array]  # of one layer, or of all layers stacked
Transformation = Callable[[Callable[[Weights, Array], Array]], Callable[[Weights, Array], Array]]

_EPSILON = 1e-5
_RATE, _MEAN_DECAY, _SQUARE_DECAY = 3e-4, 0.9, 0.95


@final
@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder-only transformer. Its layers are equal, and are scanned.

    Attributes:
        layers: the number of layers.
        width: the size of the residual stream.
        heads, key_heads: the numbers of query heads, and of key and value heads.
        head_width: the size of a head.
        hidden: the hidden size of the feed-forward layer.
        vocabulary: the number of words.
        is_gated: whether the feed-forward layer is SwiGLU, with three matrices; otherwise GELU, with two.
        is_tied: whether the output layer has the weights of the embedding.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    is_gated: bool = True
    is_tied: bool = False

    def weights(self, dtype: DTypeLike = np.float32) -> dict[str, Any]:
        """Return the types of the weights, those of all layers stacked.

        Args:
            dtype: their dtype.

        Returns:
            A tree of ShapeDtypeStructs.

        Raises:
            Nothing.

        Example:
            >>> jax.models.preset("llama3-8b").weights()["layers"]["query"].shape
            (32, 4096, 32, 128)
        """
        width, head = self.width, self.head_width
        layer = {
            "query": (width, self.heads, head),
            "key": (width, self.key_heads, head),
            "value": (width, self.key_heads, head),
            "out": (self.heads, head, width),
            **({"gate": (width, self.hidden)} if self.is_gated else {}),
            "up": (width, self.hidden),
            "down": (self.hidden, width),
            "attention_norm": (width,),
            "hidden_norm": (width,),
        }
        ends = {"embedding": (self.vocabulary, width), "norm": (width,)}
        if not self.is_tied:
            ends["head"] = (width, self.vocabulary)
        stacked = {name: ShapeDtypeStruct((self.layers, *shape), dtype) for name, shape in layer.items()}
        return {"layers": stacked, **{name: ShapeDtypeStruct(shape, dtype) for name, shape in ends.items()}}

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.weights()))

    def loss(self, weights: dict[str, Any], tokens: Array, remat: Transformation | None = None) -> Array:
        """Return the mean cross entropy of the next words. Products are computed in bfloat16.

        Args:
            weights: the weights.
            tokens: int32[sequences, length + 1].
            remat: a transformation of the function of a layer, such as `jax.checkpoint`.

        Returns:
            A float32 scalar.

        Raises:
            Nothing.

        Example:
            >>> small = jax.models.Decoder(2, 16, 4, 2, 4, 32, 64)
            >>> weights = jax.tree.map(lambda leaf: 0.1 * jnp.ones(leaf.shape, leaf.dtype), small.weights())
            >>> float(small.loss(weights, jnp.zeros((1, 9), jnp.int32)).round(2))
            4.16
        """
        layer = partial(_layer, self) if remat is None else remat(partial(_layer, self))
        x = _narrow(weights["embedding"])[tokens[:, :-1]]
        x, _ = lax.scan(lambda x, weights: (layer(weights, x), None), x, weights["layers"])
        head = weights["embedding"].T if self.is_tied else weights["head"]
        logits = (_norm(x, weights["norm"]) @ _narrow(head)).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def _layer(sizes: Decoder, weights: Weights, x: Array) -> Array:
    weights = jax.tree.map(_narrow, weights)
    h = _norm(x, weights["attention_norm"])
    query, key, value = (jnp.einsum("btd,dnh->btnh", h, weights[name]) for name in ("query", "key", "value"))
    mixed = jax.nn.dot_product_attention(_rotary(query), _rotary(key), value, is_causal=True)
    x = x + jnp.einsum("btnh,nhd->btd", mixed, weights["out"])
    h = _norm(x, weights["hidden_norm"])
    up = h @ weights["up"]
    hidden = jax.nn.silu(h @ weights["gate"]) * up if sizes.is_gated else jax.nn.gelu(up)
    return x + hidden @ weights["down"]


def _narrow(x: Array) -> Array:
    return x.astype(jnp.bfloat16)


def _norm(x: Array, scale: Array) -> Array:
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + _EPSILON)).astype(x.dtype) * scale.astype(x.dtype)


def _rotary(x: Array) -> Array:
    """Rotate pairs of features of `x` [batch, length, heads, head_width] by angles that grow with the position."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10000.0 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None].astype(x.dtype), jnp.sin(angles)[:, None].astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def train_step(sizes: Decoder, microbatches: int = 1, remat: Transformation | None = None) -> Callable[..., Any]:
    """Return a training step with Adam: state, tokens → state, loss.

    Args:
        sizes: the sizes of the decoder.
        microbatches: the parts of the batch whose gradients are accumulated one after the other. With several, tokens
            have a leading dim of microbatches.
        remat: a transformation of the function of a layer, such as `jax.checkpoint`.

    Returns:
        A function of a state, as `train_state` returns it, and of tokens.

    Raises:
        Nothing.

    Example:
        >>> small = jax.models.Decoder(2, 16, 4, 2, 4, 32, 64)
        >>> tokens = jax.ShapeDtypeStruct((8, 33), jnp.int32)
        >>> state, loss = jax.eval_shape(jax.models.train_step(small), jax.models.train_state(small), tokens)
        >>> loss.shape
        ()
    """
    gradient = jax.value_and_grad(partial(sizes.loss, remat=remat))

    def accumulated(weights: object, tokens: Array) -> Any:
        def add(total: object, tokens: Array) -> Any:
            return jax.tree.map(jnp.add, total, gradient(weights, tokens)), None

        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, weights))
        total, _ = lax.scan(add, zeros, tokens)
        return jax.tree.map(lambda leaf: leaf / microbatches, total)

    def step(state: dict[str, Any], tokens: Array) -> Any:
        loss, gradients = (gradient if microbatches == 1 else accumulated)(state["weights"], tokens)
        return _adam(state, gradients), loss

    return step


def train_state(sizes: Decoder) -> dict[str, Any]:
    """Return the types of the state of a training step: weights and the two averages of Adam, in float32.

    Args:
        sizes: the sizes of the decoder.

    Returns:
        A tree of ShapeDtypeStructs.

    Raises:
        Nothing.

    Example:
        >>> list(jax.models.train_state(jax.models.preset("llama3-8b")))
        ['weights', 'mean', 'square', 'count']
    """
    weights = sizes.weights()
    return {"weights": weights, "mean": weights, "square": weights, "count": ShapeDtypeStruct((), jnp.int32)}


def _adam(state: dict[str, Any], gradients: object) -> dict[str, Any]:
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: _MEAN_DECAY * m + (1 - _MEAN_DECAY) * g, state["mean"], gradients)
    square = jax.tree.map(lambda v, g: _SQUARE_DECAY * v + (1 - _SQUARE_DECAY) * g * g, state["square"], gradients)
    rate = _RATE * jnp.sqrt(1 - _SQUARE_DECAY**count) / (1 - _MEAN_DECAY**count)

    def update(w: Array, m: Array, v: Array) -> Any:
        return w - rate * m / (jnp.sqrt(v) + 1e-8)

    return {
        "weights": jax.tree.map(update, state["weights"], mean, square),
        "mean": mean,
        "square": square,
        "count": count,
    }
