"""A decoder as plain functions: its weights as a tree, and its loss."""

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
from shardwise.models.attention import (
    LatentAttention,
    grouped_attention,
    grouped_shapes,
    latent_attention,
    latent_shapes,
)
from shardwise.models.feed_forward import Experts, dense, dense_shapes, expert_shapes, experts
from shardwise.models.layers import Shapes, Weights, narrow, rms_norm

Transformation = Callable[[Callable[[Weights, Array], Array]], Callable[[Weights, Array], Array]]


@final
@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder-only transformer. Equal layers are scanned.

    Attributes:
        layers: the number of layers.
        width: the size of the residual stream.
        heads, key_heads: the numbers of query heads, and of key and value heads.
        head_width: the size of a head.
        hidden: the hidden size of the feed-forward layer, where it is dense.
        vocabulary: the number of words.
        is_gated: whether the feed-forward layer is SwiGLU, with three matrices; otherwise GELU, with two.
        is_tied: whether the output layer has the weights of the embedding.
        experts: the sizes of a mixture of experts, which replaces the feed-forward layer; None if it is dense.
        latent: the sizes of multi-head latent attention, whose key heads are as many as its query heads; None for
            grouped-query attention.
        attention: the `implementation` of `dot_product_attention`: None for the fastest one, "xla" for none that is
            fused.
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
    experts: Experts | None = None
    latent: LatentAttention | None = None
    attention: str | None = None

    def weights(self, dtype: DTypeLike = np.float32) -> dict[str, Any]:
        """Return the types of the weights, those of equal layers stacked.

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
        ends: Shapes = {"embedding": (self.vocabulary, self.width), "norm": (self.width,)}
        if not self.is_tied:
            ends["head"] = (self.width, self.vocabulary)
        stacks = {
            name: {key: ShapeDtypeStruct((count, *shape), dtype) for key, shape in shapes.items()}
            for name, (count, shapes) in self._stacks().items()
        }
        return {**stacks, **{name: ShapeDtypeStruct(shape, dtype) for name, shape in ends.items()}}

    def _stacks(self) -> dict[str, tuple[int, Shapes]]:
        """Return the stacks of equal layers, in their order: their number, and the shapes of the weights of one."""
        common: Shapes = {
            **(
                grouped_shapes(self.width, self.heads, self.key_heads, self.head_width)
                if self.latent is None
                else latent_shapes(self.width, self.heads, self.head_width, self.latent)
            ),
            "attention_norm": (self.width,),
            "hidden_norm": (self.width,),
        }
        plain = {**common, **dense_shapes(self.width, self.hidden, self.is_gated)}
        if self.experts is None:
            return {"layers": (self.layers, plain)}
        first = self.experts.dense_layers
        mixed = {**common, **expert_shapes(self.width, self.experts)}
        return {**({"dense_layers": (first, plain)} if first else {}), "layers": (self.layers - first, mixed)}

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.weights()))

    @property
    def active_parameters(self) -> int:
        """The number of weights that a token uses: all but those of the experts that are not chosen for it."""
        if self.experts is None:
            return self.parameters
        idle = self.experts.count - self.experts.chosen
        mixed = self.layers - self.experts.dense_layers
        return self.parameters - mixed * idle * 3 * self.width * self.experts.hidden

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
        x = narrow(weights["embedding"])[tokens[:, :-1]]
        for name in self._stacks():
            x, _ = lax.scan(lambda x, weights: (layer(weights, x), None), x, weights[name])
        head = weights["embedding"].T if self.is_tied else weights["head"]
        logits = (rms_norm(x, weights["norm"]) @ narrow(head)).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def _layer(sizes: Decoder, weights: Weights, x: Array) -> Array:
    weights = jax.tree.map(narrow, weights)
    attend = grouped_attention if sizes.latent is None else latent_attention
    x = x + attend(weights, rms_norm(x, weights["attention_norm"]), sizes.attention)
    h = rms_norm(x, weights["hidden_norm"])
    if sizes.experts is not None and "router" in weights:
        return x + experts(sizes.experts, weights, h)
    return x + dense(weights, h)
