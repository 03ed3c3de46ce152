"""Training steps of models other than a GPT on one GPU: Shardwise compared with JAX.

    python -m benchmarks.gpu_models [--models llama] [--sides shardwise,jax] [--repeats 10] [--hlo FOLDER]
    python -m benchmarks.gpu_models --kernels --sides shardwise    norms, loss and optimizer by `shardwise.kernels`

    python -m benchmarks.gpu_models --models moe --grouped         products of experts by `shardwise.kernels`

llama: width 2048, 16 layers of 16 query and 4 key heads, SwiGLU of 5632, rotary embedding, vocabulary 32000, length
2048, batch 8; computed in bfloat16, with float32 parameters and Adam. Attention uses cuDNN.
moe: the same with 4 layers, whose tokens go to 2 of 8 experts; without `--grouped`, by `lax.ragged_dot`.
A library that is not installed is skipped. `--small` runs tiny models without cuDNN, to try the program on a CPU.
`--hlo` writes the HLO.
"""

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

RATE, DECAY, SQUARE_DECAY, EPSILON = 1e-4, 0.9, 0.95, 1e-8
UNCORRECTED = 10**6  # a number of steps after which Adam's corrections are 1


@final
@dataclass(frozen=True)
class Llama:
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
        layer = {"q": (d, d), "k": (d, keys), "v": (d, keys), "out": (d, d), "norm1": (d,), "norm2": (d,)}
        experts = (self.experts,) if self.experts else ()
        layer |= {
            "gate": (*experts, d, self.hidden),
            "up": (*experts, d, self.hidden),
            "down": (*experts, self.hidden, d),
        }
        if self.experts:
            layer["router"] = (d, self.experts)
        return {"embed": (self.words, d), "head": (d, self.words), "norm": (d,), "layers": [layer] * self.layers}


MODELS = {"llama": Llama(), "moe": Llama(layers=4, experts=8)}
SMALL = {"llama": Llama(64, 32, 2, 4, 2, 48, 16, 2), "moe": Llama(64, 32, 2, 4, 2, 48, 16, 2, experts=4)}


def mixture(library: Any, model: Llama, x: Any, w: Any, grouped: bool) -> Any:
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


def llama_loss(library: Any, model: Llama, attention: str | None, kernels: bool, grouped: bool) -> Callable[..., Any]:
    """Return the loss of (parameters, tokens)."""
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
            return x, mixture(library, model, h.reshape(-1, model.width), w, grouped).reshape(x.shape)
        hidden = nn.silu(jnp.dot(h, w["gate"].astype(dtype))) * jnp.dot(h, w["up"].astype(dtype))
        return x, jnp.dot(hidden, w["down"].astype(dtype))

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"].astype(dtype)[tokens[:, :-1]]
        state = x, jnp.zeros_like(x)
        for w in params["layers"]:
            state = layer(state, w)
        _, h = add_and_norm(*state, params["norm"])
        logits = jnp.dot(h, params["head"].astype(dtype))
        if kernels:
            return jnp.mean(library.kernels.cross_entropy(logits, tokens[:, 1:]))
        logits = logits.astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(nn.logsumexp(logits, axis=-1) - picked)

    return loss


def training_step(library: Any, model: Any, attention: str | None, kernels: bool, grouped: bool) -> Callable[..., Any]:
    """Return the step (parameters, means, squares, copy, tokens) → (parameters, means, squares, copy, loss).

    The copy of the parameters in bfloat16 is None without kernels.
    """
    tree, jnp = library.tree, library.numpy
    loss = llama_loss(library, model, attention, kernels, grouped)

    def step(params: Any, means: Any, squares: Any, copy: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params if copy is None else copy, tokens)
        if copy is not None:
            optimizer = library.kernels.adam(RATE, DECAY, SQUARE_DECAY, EPSILON, compute_dtype=jnp.bfloat16)
            state = library.kernels.AdamState(jnp.int32(UNCORRECTED), means, squares, copy)
            params, (_, means, squares, copy) = optimizer.apply(grads, state, params)
            return params, means, squares, copy, value
        means = tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
        squares = tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
        params = tree.map(lambda p, m, s: p - RATE * m / (jnp.sqrt(s) + EPSILON), params, means, squares)
        return params, means, squares, None, value

    return library.jit(step, donate_argnums=(0, 1, 2, 3))  # type: ignore[no-any-return]


def arguments(library: Any, model: Any, kernels: bool) -> tuple[Any, ...]:
    """Return parameters, means, squares, copy and tokens."""
    rng, jnp, tree = np.random.default_rng(0), library.numpy, library.tree

    def weight(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return jnp.ones(shape, np.float32)
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-2])))

    params = tree.map(weight, model.weights(), is_leaf=lambda x: isinstance(x, tuple))
    means, squares = (tree.map(jnp.zeros_like, params) for _ in range(2))
    copy = tree.map(lambda x: x.astype(jnp.bfloat16), params) if kernels else None
    tokens = jnp.asarray(rng.integers(0, model.words, (model.batch, model.length + 1)).astype(np.int32))
    return params, means, squares, copy, tokens


def measure(side: str, name: str, options: argparse.Namespace) -> str:
    library = importlib.import_module(side)
    model = (SMALL if options.small else MODELS)[name]
    if options.layers:
        model = replace(model, layers=options.layers)
    *state, tokens = arguments(library, model, options.kernels)
    step = training_step(library, model, None if options.small else "cudnn", options.kernels, options.grouped)
    if options.hlo:
        options.hlo.mkdir(parents=True, exist_ok=True)
        text = step.lower(*state, tokens).compile().as_text()  # type: ignore[attr-defined]
        (options.hlo / f"{side}-{name}{'-kernels' if options.kernels else ''}.txt").write_text(text)
    start = time.perf_counter()
    *state, loss = step(*state, tokens)
    first = float(loss)
    compiled, times = time.perf_counter() - start, []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(options.repeats):
            *state, loss = step(*state, tokens)
        float(loss)
        times.append((time.perf_counter() - start) / options.repeats)
    stats = library.devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use", 0) / 2**30
    return f"{name:8} {side:12} {compiled:8.1f} s {min(times) * 1e3:7.1f} ms {first:8.4f} {peak:6.1f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--sides", default="shardwise,jax")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--kernels", action="store_true", help="use shardwise.kernels")
    parser.add_argument("--grouped", action="store_true", help="multiply experts by shardwise.kernels.grouped_dot")
    parser.add_argument("--hlo", type=Path, help="write the optimized HLO to this folder")
    parser.add_argument("--small", action="store_true", help="run tiny models without cuDNN")
    options = parser.parse_args()
    runs = [(name, side) for name in options.models.split(",") for side in options.sides.split(",")]
    if len(runs) == 1:
        print(measure(runs[0][1], runs[0][0], options), flush=True)
        return
    print(f"{'model':8} {'side':12} {'first call':>10} {'step':>10} {'loss':>8} {'peak':>10}", flush=True)
    for name, side in runs:
        if find_spec(side) is None:
            print(f"{name:8} {side:12} is not installed")
            continue
        # A new process per row: a GPU has one client, and the peak of memory is that of the row.
        command = [sys.executable, "-m", "benchmarks.gpu_models", *sys.argv[1:], "--models", name, "--sides", side]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
