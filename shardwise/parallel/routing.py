"""Top-k routing of tokens to experts, on one device: the choices, their weights, and the order by expert.

An *assignment* is a pair of a token and one of the k experts that it is routed to. Assignments are numbered with all
first choices first, then all second choices, so that first choices have priority where an expert is full.
"""

from typing import NamedTuple

import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.compiler.arrays.methods import Array

SOFTMAX, SIGMOID = "softmax", "sigmoid"
SCORES = (SOFTMAX, SIGMOID)  # how logits become scores


class Routing(NamedTuple):
    """The assignments of a device's tokens.

    Attributes:
        expert: the expert of each assignment, [k · tokens].
        weight: the weight of each assignment in the token's result, [k, tokens].
        counts: the number of assignments of each expert, [experts].
        order: the assignments sorted by expert, [k · tokens].
        rank: the position of each assignment among those of its expert, [k · tokens].
        probability: the sum over all tokens of the probability of each expert, [experts]. The probabilities of a token
            add up to 1.
        log_sum: the sum over all tokens of the squared log-sum-exp of the logits.
    """

    expert: Array
    weight: Array
    counts: Array
    order: Array
    rank: Array
    probability: Array
    log_sum: Array


def route(logits: Array, k: int, normalize: bool, scores: str, selection_bias: Array | None) -> Routing:
    """Route tokens with these router logits, [tokens, experts], to the k experts with the largest scores.

    Args:
        logits: the router's logits.
        k: the number of experts per token.
        normalize: whether the weights of a token's k experts are divided by their sum.
        scores: "softmax" or "sigmoid" of the logits.
        selection_bias: a bias of each expert's score, [experts], which affects only which experts are chosen.
    """
    experts = logits.shape[-1]
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_sums = nn.logsumexp(logits, -1)
    if scores == SIGMOID:
        score = nn.sigmoid(logits)
        probabilities = score / score.sum(-1, keepdims=True)
    else:
        score = probabilities = jnp.exp(logits - log_sums[:, None])
    if selection_bias is None:
        weight, choices = lax.top_k(score, k)
    else:
        _, choices = lax.top_k(lax.stop_gradient(score + selection_bias.astype(score.dtype)), k)
        weight = jnp.take_along_axis(score, choices, -1)
    if normalize:
        weight = weight / weight.sum(-1, keepdims=True)
    expert = choices.T.reshape(-1)
    counts = (expert[:, None] == jnp.arange(experts, dtype=expert.dtype)).sum(0, dtype=jnp.int32)
    order = jnp.argsort(expert, stable=True).astype(jnp.int32)
    number = jnp.arange(expert.size, dtype=jnp.int32)
    position = jnp.zeros_like(number).at[order].set(number, unique_indices=True)  # of each assignment in `order`
    return Routing(
        expert=expert,
        weight=weight.T,
        counts=counts,
        order=order,
        rank=position - starts(counts)[expert],
        probability=probabilities.sum(0),
        log_sum=(log_sums**2).sum(),
    )


def starts(sizes: Array, axis: int = -1) -> Array:
    """Return the start of each part, given the sizes of consecutive parts."""
    return jnp.cumsum(sizes, axis) - sizes
