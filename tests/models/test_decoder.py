"""Losses of decoders, and their gradients, on one device and on several."""

import numpy as np
import pytest

import shardwise as jax
from shardwise.models import Decoder, Experts, LatentAttention
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

MIXTURE = Decoder(2, 16, 4, 2, 4, 24, 32, experts=Experts(4, 2, 12))
LATENT = Decoder(
    3,
    16,
    4,
    4,
    4,
    24,
    32,
    experts=Experts(8, 2, 12, shared=1, dense_layers=1, scores="sigmoid", scale=2.5),
    latent=LatentAttention(query_rank=8, key_rank=6, rotary_width=2),
)


def test_a_tied_decoder_has_no_head_and_a_plain_one_no_gate():
    weights = Decoder(2, 16, 4, 4, 4, 32, 64, is_gated=False, is_tied=True).weights()
    assert "head" not in weights and "gate" not in weights["layers"]


def test_the_first_layers_of_a_mixture_may_be_dense():
    weights = LATENT.weights()
    assert weights["dense_layers"]["up"].shape == (1, 16, 24)
    assert weights["layers"]["expert_up"].shape == (2, 8, 16, 12)
    assert LATENT.parameters - LATENT.active_parameters == 2 * 6 * 3 * 16 * 12


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [MIXTURE, LATENT])
def test_mixtures_on_a_mesh_have_the_loss_and_the_gradients_of_one_device(sizes):
    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(np.float32), sizes.weights())
    tokens = rng.integers(0, sizes.vocabulary, (8, 9)).astype(np.int32)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    specs = jax.tree.map(lambda leaf: P(), weights)
    for name in ("expert_gate", "expert_up"):
        specs["layers"][name] = P(None, "data", None, "model")  # experts are sharded as the batch is
    specs["layers"]["expert_down"] = P(None, "data", "model")
    sharded = jax.tree.map(lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), weights, specs)
    gradient = jax.jit(jax.value_and_grad(sizes.loss))
    loss, alone = gradient(weights, tokens)
    same_loss, together = gradient(sharded, jax.device_put(tokens, NamedSharding(mesh, P("data"))))
    np.testing.assert_allclose(loss, same_loss, rtol=2e-3)
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-2 * np.abs(a).max() + 1e-7)  # products are bfloat16
    assert np.abs(alone["layers"]["router"]).max() > 0
