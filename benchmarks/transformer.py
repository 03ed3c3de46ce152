"""A training step of a transformer language model with Adam, layer after layer: what compilers are slow at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from benchmarks.programs import Side

RATE, DECAY, SQUARE_DECAY, TINY = 1e-3, 0.9, 0.999, 1e-8
DATA, MODEL = "data", "model"
MESH = ((4, 2), (DATA, MODEL))


@final
@dataclass(frozen=True)
class Model:
    """Sizes; layers are cut as Megatron has it, and the batch over the data axis."""

    layers: int
    batch: int = 8
    length: int = 16
    width: int = 32
    heads: int = 4
    hidden: int = 64
    words: int = 64

    def shapes(self) -> dict[str, Any]:
        """Of every parameter, and its layout."""
        d, h = self.width, self.hidden
        layer = {
            "qkv": ((d, 3, self.heads, d // self.heads), (None, None, MODEL, None)),
            "out": ((self.heads, d // self.heads, d), (MODEL, None, None)),
            "up": ((d, h), (None, MODEL)),
            "down": ((h, d), (MODEL, None)),
            "norm1": ((d,), (None,)),
            "norm2": ((d,), (None,)),
        }
        return {"embed": ((self.words, d), (None, None)), "norm": ((d,), (None,)), "layers": [layer] * self.layers}


def training_step(library: Any) -> Callable[..., Any]:
    """(parameters, means, squares, tokens) → (parameters, means, squares, loss)."""
    jnp, lax = library.numpy, library.lax

    def normed(x: Any, scale: Any) -> Any:
        x = x - jnp.mean(x, -1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def softmax(x: Any) -> Any:
        e = jnp.exp(x - lax.stop_gradient(jnp.max(x, -1, keepdims=True)))
        return e / jnp.sum(e, -1, keepdims=True)

    def attention(x: Any, layer: Any) -> Any:
        batch, length, _ = x.shape
        d, _, heads, size = layer["qkv"].shape
        qkv = (x @ layer["qkv"].reshape(d, 3 * heads * size)).reshape(batch, length, 3, heads, size)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = q @ k.transpose(0, 1, 3, 2) * size**-0.5
        rows, columns = jnp.arange(length)[:, None], jnp.arange(length)[None, :]
        mixed = softmax(jnp.where(rows >= columns, scores, -1e9)) @ v
        mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)
        return mixed @ layer["out"].reshape(heads * size, d)

    def loss(params: Any, tokens: Any) -> Any:
        words = params["embed"].shape[0]
        chosen = (tokens[:, :, None] == jnp.arange(words)).astype(jnp.float32)
        x = chosen[:, :-1] @ params["embed"]
        for layer in params["layers"]:
            x = x + attention(normed(x, layer["norm1"]), layer)
            h = normed(x, layer["norm2"]) @ layer["up"]
            x = x + (h * (1 + jnp.tanh(0.8 * (h + 0.04 * h * h * h)))) @ layer["down"]
        logits = normed(x, params["norm"]) @ params["embed"].T
        logits = logits - lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
        log_total = jnp.log(jnp.sum(jnp.exp(logits), -1))
        return jnp.mean(log_total - jnp.sum(logits * chosen[:, 1:], -1))

    def step(params: Any, means: Any, squares: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, tokens)
        means = library.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
        squares = library.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
        params = library.tree.map(lambda p, m, s: p - RATE * m / (jnp.sqrt(s) + TINY), params, means, squares)
        return params, means, squares, value

    return step


def on_one_device(side: Side, model: Model) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step and its arguments, on one device."""
    return training_step(side.library), _arguments(side, model, lambda value, spec: side.put(value))


def on_mesh(side: Side, model: Model) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step and its arguments, data × tensor parallel on a mesh of eight devices."""
    mesh = side.mesh(*MESH)
    return training_step(side.library), _arguments(side, model, lambda value, spec: side.put(value, mesh, spec))


def _arguments(side: Side, model: Model, put: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)

    def made(entry: Any, value: Callable[[Any], Any]) -> Any:
        if isinstance(entry, dict):
            return {name: made(part, value) for name, part in entry.items()}
        if isinstance(entry, list):
            return [made(part, value) for part in entry]
        shape, spec = entry
        return put(value(shape).astype(np.float32), spec)

    shapes = model.shapes()
    params = made(shapes, lambda shape: rng.normal(size=shape) / np.sqrt(shape[0]))
    means, squares = made(shapes, np.zeros), made(shapes, np.zeros)
    tokens = put(rng.integers(0, model.words, (model.batch, model.length + 1)).astype(np.int32), (DATA, None))
    return params, means, squares, tokens
