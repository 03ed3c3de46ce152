"""Models of `gpu_models`: their sizes, parameters and losses, for a library with JAX's names.

llama: grouped-query attention, SwiGLU and rotary embedding. moe: the same, whose tokens go to some of several experts.
vit: a vision transformer with the mean of the patches as its result.
All are computed in bfloat16. Parameters are dicts, with a list of layers. Their numbers are those of one array, so that
every library starts with the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

_RANDOM = 4_194_301  # random numbers, which repeat; a prime, so that the rows of a matrix differ


@final
@dataclass(frozen=True)
class Decoder:
    """The sizes of a Llama-like model."""

    words: int = 32000
    width: int = 2048
    layers: int = 16
    heads: int = 16
    key_heads: int = 4
    hidden: int = 5632
    length: int = 2048
    batch: int = 8
    experts: int = 0  # none: one SwiGLU per layer
    chosen: int = 2  # experts per token

    @property
    def head(self) -> int:
        return self.width // self.heads

    def weights(self) -> dict[str, Any]:
        """Return the shapes of the parameters."""
        d, keys = self.width, self.key_heads * self.head
        experts = (self.experts,) if self.experts else ()
        layer = {
            **{"norm1": (d,), "q": (d, d), "k": (d, keys), "v": (d, keys), "out": (d, d), "norm2": (d,)},
            **{"gate": (*experts, d, self.hidden), "up": (*experts, d, self.hidden)},
            "down": (*experts, self.hidden, d),
            **({"router": (d, self.experts)} if self.experts else {}),
        }
        return {"embed": (self.words, d), "head": (d, self.words), "norm": (d,), "layers": [layer] * self.layers}

    def data(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return a batch: tokens."""
        rng = np.random.default_rng(1)
        return (rng.integers(0, self.words, (self.batch, self.length + 1)).astype(np.int32),)

    def loss(self, library: Any, attention: str | None, kernels: bool) -> Callable[..., Any]:
        """Return (parameters, tokens) → the loss. `kernels`: use those of `shardwise.kernels`."""
        return _decoder_loss(library, self, attention, kernels)


@final
@dataclass(frozen=True)
class Vit:
    """The sizes of a vision transformer."""

    classes: int = 1000
    width: int = 1024
    layers: int = 24
    heads: int = 16
    hidden: int = 4096
    image: int = 256
    patch: int = 16
    batch: int = 64

    @property
    def length(self) -> int:
        """The number of patches."""
        return (self.image // self.patch) ** 2

    def weights(self) -> dict[str, Any]:
        """Return the shapes of the parameters."""
        d, pixels = self.width, 3 * self.patch**2
        norms = {f"{part}{number}": (d,) for number in (1, 2) for part in ("scale", "bias")}
        layer = {**norms, **{name: (d, d) for name in ("q", "k", "v", "out")}}
        layer |= {"up": (d, self.hidden), "up_bias": (self.hidden,), "down": (self.hidden, d), "down_bias": (d,)}
        ends = {"patch_embed": (pixels, d), "position_embed": (self.length, d), "head": (d, self.classes)}
        return {**ends, "scale": (d,), "bias": (d,), "layers": [layer] * self.layers}

    def data(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return a batch: patches, and classes."""
        rng = np.random.default_rng(1)
        patches = rng.standard_normal((self.batch, self.length, 3 * self.patch**2), np.float32)
        return patches, rng.integers(0, self.classes, self.batch).astype(np.int32)

    def loss(self, library: Any, attention: str | None, kernels: bool) -> Callable[..., Any]:
        """Return (parameters, patches, classes) → the loss. `kernels`: use those of `shardwise.kernels`."""
        return _vit_loss(library, self, attention, kernels)


MODELS: dict[str, Decoder | Vit] = {"llama": Decoder(), "moe": Decoder(layers=4, experts=8), "vit": Vit()}
SMALL: dict[str, Decoder | Vit] = {
    "llama": Decoder(64, 32, 2, 4, 2, 48, 16, 2),
    "moe": Decoder(64, 32, 2, 4, 2, 48, 16, 2, experts=4),
    "vit": Vit(16, 32, 2, 4, 64, 32, 8, 4),
}


def random_numbers() -> np.ndarray[Any, Any]:
    """Return the numbers of which `parameters` are made."""
    return np.random.default_rng(0).standard_normal(_RANDOM, np.float32)


def is_vector(name: str) -> bool:
    """Return whether a parameter is a scale or a bias, and not a matrix."""
    return name.startswith(("norm", "scale", "bias")) or name.endswith("bias")


def parameters(
    model: Decoder | Vit, constant: Callable[[int, float], Any], matrix: Callable[[tuple[int, ...], int], Any]
) -> dict[str, Any]:
    """Return parameters.

    Args:
        model: the sizes.
        constant: (size, value) → an array of one dim.
        matrix: (shape, the place of its first element among the random numbers) → these, divided by the root of the
            number of its rows.
    """
    count = 0

    def create(name: str, shape: tuple[int, ...]) -> Any:
        nonlocal count
        if is_vector(name):
            return constant(shape[0], float("bias" not in name))
        start, count = count % _RANDOM, count + int(np.prod(shape, dtype=np.int64))
        return matrix(shape, start)

    weights = model.weights()
    layers = [{name: create(name, shape) for name, shape in layer.items()} for layer in weights.pop("layers")]
    return {**{name: create(name, shape) for name, shape in weights.items()}, "layers": layers}


def _cross_entropy(library: Any, logits: Any, targets: Any, kernels: bool) -> Any:
    jnp = library.numpy
    if kernels:
        return jnp.mean(library.kernels.cross_entropy(logits, targets))
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(library.nn.logsumexp(logits, axis=-1) - picked)


def _mixture(library: Any, model: Decoder, x: Any, w: Any, grouped: bool) -> Any:
    """Return the weighted sum of the chosen experts' SwiGLU of each row. Rows are sorted by expert."""
    jnp, nn, dtype = library.numpy, library.nn, x.dtype
    product = library.kernels.grouped_dot if grouped else library.lax.ragged_dot
    scores = nn.softmax(jnp.dot(x, w["router"].astype(dtype)).astype(jnp.float32))
    gates, chosen = library.lax.top_k(scores, model.chosen)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=model.experts).astype(jnp.int32)
    rows = x[order // model.chosen]
    hidden = nn.silu(product(rows, w["gate"].astype(dtype), sizes)) * product(rows, w["up"].astype(dtype), sizes)
    results = product(hidden, w["down"].astype(dtype), sizes)
    weighted = results * gates.reshape(-1)[order, None].astype(dtype)
    return jnp.zeros_like(x).at[order // model.chosen].add(weighted)


def _decoder_loss(library: Any, model: Decoder, attention: str | None, kernels: bool) -> Callable[..., Any]:
    jnp, lax, nn = library.numpy, library.lax, library.nn
    dtype = jnp.bfloat16

    def add_and_norm(x: Any, delta: Any, scale: Any) -> Any:
        if kernels:
            return library.kernels.rms_norm(x, scale, residual=delta)
        x = x + delta
        wide = x.astype(jnp.float32)
        return x, (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(dtype)

    def rotate(x: Any) -> Any:
        half = model.head // 2
        frequencies = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angle = (jnp.arange(model.length, dtype=jnp.float32)[:, None] * frequencies)[:, None]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(dtype)

    def layer(state: Any, w: Any) -> Any:
        x, h = add_and_norm(*state, w["norm1"])
        heads = {"q": model.heads, "k": model.key_heads, "v": model.key_heads}
        q, k, v = (
            jnp.dot(h, w[name].astype(dtype)).reshape(*h.shape[:2], count, model.head) for name, count in heads.items()
        )
        attended = nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True, implementation=attention)
        x, h = add_and_norm(x, jnp.dot(attended.reshape(x.shape), w["out"].astype(dtype)), w["norm2"])
        if model.experts:
            return x, _mixture(library, model, h.reshape(-1, model.width), w, kernels).reshape(x.shape)
        hidden = nn.silu(jnp.dot(h, w["gate"].astype(dtype))) * jnp.dot(h, w["up"].astype(dtype))
        return x, jnp.dot(hidden, w["down"].astype(dtype))

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"].astype(dtype)[tokens[:, :-1]]
        state = x, jnp.zeros_like(x)  # the residual stream, and what is added to it next
        for w in params["layers"]:
            state = layer(state, w)
        _, h = add_and_norm(*state, params["norm"])
        return _cross_entropy(library, jnp.dot(h, params["head"].astype(dtype)), tokens[:, 1:], kernels)

    return loss


def _vit_loss(library: Any, model: Vit, attention: str | None, kernels: bool) -> Callable[..., Any]:
    jnp, lax, nn = library.numpy, library.lax, library.nn
    dtype = jnp.bfloat16

    def add_and_norm(x: Any, delta: Any, scale: Any, bias: Any) -> Any:
        if kernels:
            return library.kernels.layer_norm(x, scale, bias, residual=delta)
        x = x + delta
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        normalized = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return x, (normalized * scale + bias).astype(dtype)

    def layer(state: Any, w: Any) -> Any:
        x, h = add_and_norm(*state, w["scale1"], w["bias1"])
        shape = (*h.shape[:2], model.heads, model.width // model.heads)
        q, k, v = (jnp.dot(h, w[name].astype(dtype)).reshape(shape) for name in ("q", "k", "v"))
        attended = nn.dot_product_attention(q, k, v, implementation=attention)
        delta = jnp.dot(attended.reshape(x.shape), w["out"].astype(dtype))
        x, h = add_and_norm(x, delta, w["scale2"], w["bias2"])
        h = nn.gelu(jnp.dot(h, w["up"].astype(dtype)) + w["up_bias"].astype(dtype))
        return x, jnp.dot(h, w["down"].astype(dtype)) + w["down_bias"].astype(dtype)

    def loss(params: Any, patches: Any, classes: Any) -> Any:
        x = jnp.dot(patches.astype(dtype), params["patch_embed"].astype(dtype))
        state = x, jnp.broadcast_to(params["position_embed"].astype(dtype), x.shape)
        for w in params["layers"]:
            state = layer(state, w)
        _, h = add_and_norm(*state, params["scale"], params["bias"])
        pooled = jnp.mean(h.astype(jnp.float32), 1).astype(dtype)
        return _cross_entropy(library, jnp.dot(pooled, params["head"].astype(dtype)), classes, kernels)

    return loss
