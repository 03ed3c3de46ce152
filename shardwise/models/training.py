"""A training step of a decoder with Adam, and the types of its state."""

from collections.abc import Callable
from functools import partial
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.models.decoder import Decoder, Transformation

_RATE, _MEAN_DECAY, _SQUARE_DECAY = 3e-4, 0.9, 0.95


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
