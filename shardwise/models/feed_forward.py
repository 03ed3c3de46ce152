"""Feed-forward layers of decoders: dense, or a mixture of experts."""

from dataclasses import dataclass
from typing import final

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.models.layers import Shapes, Weights
from shardwise.parallel.mixture_of_experts import mixture_of_experts

_EXPERT, _SHARED = "expert_", "shared_"  # prefixes of the names of weights


@final
@dataclass(frozen=True)
class Experts:
    """The sizes of a mixture of experts, which replaces the feed-forward layer.

    A sequence routes its own tokens. An expert accepts its share of them, times `capacity_factor`, and drops further
    tokens. There is no loss that balances the experts.

    Attributes:
        count: the number of experts.
        chosen: the number of experts per token.
        hidden: the hidden size of an expert.
        shared: the number of further experts that all tokens use.
        dense_layers: the number of first layers that have a dense feed-forward layer instead.
        scores: how the router's logits become weights, "softmax" or "sigmoid", as for `mixture_of_experts`. With
            "sigmoid", experts are chosen by the sum of their scores and a bias, which has no gradient.
        scale: the factor of the results of the chosen experts.
        capacity_factor: the tokens that an expert accepts, as a multiple of the mean.
    """

    count: int
    chosen: int
    hidden: int
    shared: int = 0
    dense_layers: int = 0
    scores: str = "softmax"
    scale: float = 1.0
    capacity_factor: float = 1.0


def dense_shapes(width: int, hidden: int, is_gated: bool) -> Shapes:
    """Return the shapes of the weights of a dense layer."""
    return {
        **({"gate": (width, hidden)} if is_gated else {}),
        "up": (width, hidden),
        "down": (hidden, width),
    }


def dense(weights: Weights, h: Array) -> Array:
    """Apply SwiGLU if there is a weight "gate", otherwise GELU."""
    up = h @ weights["up"]
    hidden = jax.nn.silu(h @ weights["gate"]) * up if "gate" in weights else jax.nn.gelu(up)
    return hidden @ weights["down"]


def expert_shapes(width: int, sizes: Experts) -> Shapes:
    """Return the shapes of the weights of a mixture of experts."""
    expert = dense_shapes(width, sizes.hidden, is_gated=True)
    shared = dense_shapes(width, sizes.shared * sizes.hidden, is_gated=True) if sizes.shared else {}
    return {
        "router": (width, sizes.count),
        **({"router_bias": (sizes.count,)} if sizes.scores == "sigmoid" else {}),
        **{f"{_EXPERT}{name}": (sizes.count, *shape) for name, shape in expert.items()},
        **{f"{_SHARED}{name}": shape for name, shape in shared.items()},
    }


def experts(sizes: Experts, weights: Weights, h: Array) -> Array:
    """Apply a mixture of experts to `h` [batch, length, width]."""
    logits = (h @ weights["router"]).astype(jnp.float32)

    def route(tokens: Array, logits: Array) -> Array:
        result, _ = mixture_of_experts(
            tokens,
            logits,
            _named(weights, _EXPERT),
            k=sizes.chosen,
            capacity_factor=sizes.capacity_factor,
            scores=sizes.scores,
            selection_bias=weights.get("router_bias"),
        )
        return result

    result = jax.vmap(route)(h, logits)
    if sizes.scale != 1:
        result = sizes.scale * result
    return result + dense(_named(weights, _SHARED), h) if sizes.shared else result


def _named(weights: Weights, prefix: str) -> Weights:
    """Return the weights whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): leaf for name, leaf in weights.items() if name.startswith(prefix)}
