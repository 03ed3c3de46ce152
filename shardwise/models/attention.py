"""Attention of decoders: grouped queries, and multi-head latent attention, whose keys and values have a low rank."""

from dataclasses import dataclass
from typing import final

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.models.layers import Shapes, Weights, rms_norm, rotary


@final
@dataclass(frozen=True)
class LatentAttention:
    """The sizes of multi-head latent attention, as in DeepSeek-V2 and V3.

    Queries are computed from a latent of rank `query_rank`, and the keys and values of all heads from a latent of rank
    `key_rank`. `rotary_width` further features of queries and keys are rotated by their positions; those of keys are
    the same for all heads.

    Attributes:
        query_rank: the size of the latent of queries.
        key_rank: the size of the latent of keys and values.
        rotary_width: the number of rotated features.
    """

    query_rank: int
    key_rank: int
    rotary_width: int


def grouped_shapes(width: int, heads: int, key_heads: int, head_width: int) -> Shapes:
    """Return the shapes of the weights of grouped-query attention."""
    return {
        "query": (width, heads, head_width),
        "key": (width, key_heads, head_width),
        "value": (width, key_heads, head_width),
        "out": (heads, head_width, width),
    }


def grouped_attention(weights: Weights, h: Array, implementation: str | None = None) -> Array:
    """Apply causal grouped-query attention with rotated queries and keys to `h` [batch, length, width].

    `implementation` is that of `dot_product_attention`.
    """
    query, key, value = (jnp.einsum("btd,dnh->btnh", h, weights[name]) for name in ("query", "key", "value"))
    mixed = jax.nn.dot_product_attention(
        rotary(query), rotary(key), value, is_causal=True, implementation=implementation
    )
    return jnp.einsum("btnh,nhd->btd", mixed, weights["out"])


def latent_shapes(width: int, heads: int, head_width: int, sizes: LatentAttention) -> Shapes:
    """Return the shapes of the weights of multi-head latent attention."""
    return {
        "query_down": (width, sizes.query_rank),
        "query_norm": (sizes.query_rank,),
        "query_up": (sizes.query_rank, heads, head_width + sizes.rotary_width),
        "latent_down": (width, sizes.key_rank),
        "latent_norm": (sizes.key_rank,),
        "rotary_key": (width, sizes.rotary_width),
        "key_up": (sizes.key_rank, heads, head_width),
        "value_up": (sizes.key_rank, heads, head_width),
        "out": (heads, head_width, width),
    }


def latent_attention(weights: Weights, h: Array, implementation: str | None = None) -> Array:
    """Apply causal multi-head latent attention to `h` [batch, length, width]."""
    latent_query = rms_norm(h @ weights["query_down"], weights["query_norm"])
    latent = rms_norm(h @ weights["latent_down"], weights["latent_norm"])
    query = jnp.einsum("btr,rnh->btnh", latent_query, weights["query_up"])
    key, value = (jnp.einsum("btr,rnh->btnh", latent, weights[name]) for name in ("key_up", "value_up"))
    width = value.shape[-1]
    query = jnp.concatenate([query[..., :width], rotary(query[..., width:])], -1)
    rotated_key = rotary((h @ weights["rotary_key"])[:, :, None])
    shared = jnp.broadcast_to(rotated_key, (*key.shape[:-1], rotated_key.shape[-1]))
    key = jnp.concatenate([key, shared], -1)
    # Values are narrower than keys, and attention expects one width.
    padded = jnp.pad(value, ((0, 0), (0, 0), (0, 0), (0, key.shape[-1] - width)))
    mixed = jax.nn.dot_product_attention(query, key, padded, is_causal=True, implementation=implementation)[..., :width]
    return jnp.einsum("btnh,nhd->btd", mixed, weights["out"])
