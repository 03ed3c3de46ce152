"""Decoders by name, with the sizes that their authors published."""

from difflib import get_close_matches

from shardwise.models.attention import LatentAttention
from shardwise.models.decoder import Decoder
from shardwise.models.feed_forward import Experts

PRESETS = {
    "llama3-8b": Decoder(32, 4096, 32, 8, 128, 14336, 128256),
    "llama3-70b": Decoder(80, 8192, 64, 8, 128, 28672, 128256),
    "llama3-405b": Decoder(126, 16384, 128, 8, 128, 53248, 128256),
    "mixtral-8x7b": Decoder(32, 4096, 32, 8, 128, 14336, 32000, experts=Experts(8, 2, 14336)),
    "mixtral-8x22b": Decoder(56, 6144, 48, 8, 128, 16384, 32768, experts=Experts(8, 2, 16384)),
    # Without the module that predicts a second token, and without the limit to four groups of experts per token.
    "deepseek-v3": Decoder(
        61,
        7168,
        128,
        128,
        128,
        18432,
        129280,
        experts=Experts(256, 8, 2048, shared=1, dense_layers=3, scores="sigmoid", scale=2.5),
        latent=LatentAttention(query_rank=1536, key_rank=512, rotary_width=64),
    ),
}


def preset(name: str) -> Decoder:
    """Return the sizes of a decoder.

    Args:
        name: its name, such as "llama3-70b"; `PRESETS` has all.

    Returns:
        A Decoder.

    Raises:
        ValueError: if there is no such decoder.

    Example:
        >>> jax.models.preset("llama3-70b").parameters
        70553706496
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(map(repr, PRESETS))}."
        raise ValueError(f"unknown model {name!r}. {hint}")
    return PRESETS[name]
