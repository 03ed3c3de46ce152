"""Functions that layers of decoders share. Products are computed in bfloat16."""

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array

Weights = dict[str, Array]  # of one layer, or of all layers stacked
Shapes = dict[str, tuple[int, ...]]  # of the weights of one layer

_EPSILON = 1e-5


def narrow(x: Array) -> Array:
    """Return an array in bfloat16."""
    return x.astype(jnp.bfloat16)


def rms_norm(x: Array, scale: Array) -> Array:
    """Divide the last dim of `x` by its root mean square, which is computed in float32, and scale it."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + _EPSILON)).astype(x.dtype) * scale.astype(x.dtype)


def rotary(x: Array) -> Array:
    """Rotate pairs of features of `x` [batch, length, heads, head_width] by angles that grow with the position."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10000.0 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None].astype(x.dtype), jnp.sin(angles)[:, None].astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
