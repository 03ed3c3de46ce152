"""Latent attention against numpy, with separate products for the two parts of queries and keys."""

import numpy as np

import shardwise as jax
from shardwise.models.attention import LatentAttention, grouped_shapes, latent_attention, latent_shapes

SIZES = LatentAttention(query_rank=6, key_rank=5, rotary_width=4)


def rotated(x):
    """Pairs of features as complex numbers, times a phase that grows with the position."""
    half = x.shape[-1] // 2
    phase = np.arange(x.shape[1])[:, None] / 10000.0 ** (np.arange(half) / half)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * phase)[:, None]
    return np.concatenate([pairs.real, pairs.imag], -1)


def test_latent_attention_equals_its_definition():
    rng = np.random.default_rng(0)
    shapes = latent_shapes(8, 3, 2, SIZES)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    h = rng.normal(size=(2, 7, 8)).astype(np.float32)

    def normed(x, scale):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    query = np.einsum("btr,rnh->btnh", normed(h @ weights["query_down"], weights["query_norm"]), weights["query_up"])
    latent = normed(h @ weights["latent_down"], weights["latent_norm"])
    key, value = (np.einsum("btr,rnh->btnh", latent, weights[name]) for name in ("key_up", "value_up"))
    shared = rotated((h @ weights["rotary_key"])[:, :, None])[:, :, 0]
    scores = np.einsum("btnh,bsnh->bnts", query[..., :2], key)
    scores += np.einsum("btnh,bsh->bnts", rotated(query[..., 2:]), shared)
    scores = np.where(np.tril(np.ones((7, 7), bool)), scores / np.sqrt(2 + 4), -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("bnts,bsnh->btnh", shares / shares.sum(-1, keepdims=True), value)
    expected = np.einsum("btnh,nhd->btd", mixed, weights["out"])
    np.testing.assert_allclose(jax.jit(latent_attention)(weights, h), expected, rtol=1e-3, atol=1e-3)


def test_grouped_attention_has_fewer_weights_for_keys():
    assert grouped_shapes(8, 4, 2, 3)["key"] == (8, 2, 3)
