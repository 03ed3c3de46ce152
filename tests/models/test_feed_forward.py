"""A mixture of experts in a decoder against a loop over tokens in numpy."""

import numpy as np
import pytest

import shardwise as jax
from shardwise.models.feed_forward import Experts, expert_shapes, experts


def gated(weights, prefix, x, index=...):
    gate, up, down = (weights[f"{prefix}{name}"][index] for name in ("gate", "up", "down"))
    hidden = x @ gate
    return (hidden / (1 + np.exp(-hidden)) * (x @ up)) @ down


@pytest.mark.parametrize(
    "sizes",
    [
        Experts(4, 2, 5, capacity_factor=4.0),
        Experts(6, 3, 5, shared=2, scores="sigmoid", scale=2.5, capacity_factor=4.0),
    ],
)
def test_experts_equal_a_loop_over_tokens(sizes):
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in expert_shapes(8, sizes).items()}
    h = rng.normal(size=(2, 3, 8)).astype(np.float32)
    logits = h @ weights["router"]
    score = np.exp(logits) if sizes.scores == "softmax" else 1 / (1 + np.exp(-logits))
    expected = np.zeros_like(h)
    for place in np.ndindex(h.shape[:2]):
        chosen = np.argsort(-(score[place] + weights.get("router_bias", 0)))[: sizes.chosen]
        share = sizes.scale * score[place][chosen] / score[place][chosen].sum()
        expected[place] = sum(a * gated(weights, "expert_", h[place], e) for a, e in zip(share, chosen, strict=True))
        if sizes.shared:
            expected[place] += gated(weights, "shared_", h[place])
    np.testing.assert_allclose(jax.jit(experts, static_argnums=0)(sizes, weights, h), expected, rtol=1e-3, atol=1e-3)
