"""Predicted and measured times of training steps on the accelerator of this machine.

    python -m benchmarks.predictions [--hardware CHIP] [--json FILE]

Measures the chip first, as `shardwise calibrate` does, then predicts every model by `simulate` with these figures, and
times it. No figure is fitted to a model.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks import h200
from shardwise import lax, nn
from shardwise.compiler.plan import hardware
from shardwise.compiler.plan.chip_table import format_chip
from shardwise.explain.calibrate import calibrate, random_array

BF16 = jnp.bfloat16
Model = tuple[str, Callable[..., Any], tuple[Any, ...]]


def normal(*shape: int, dtype: Any = BF16, scale: float = 0.02) -> Any:
    """Return random numbers, made on the device."""
    return random_array(shape, dtype, scale)


def gradient_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value

    return jax.jit(step)


def mlp() -> Model:
    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = nn.gelu(x @ w.astype(BF16))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    params = [normal(8192, 8192, dtype=jnp.float32) for _ in range(4)]
    return "MLP", gradient_step(loss), (params, normal(8192, 8192))


def conv_net() -> Model:
    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean = jnp.mean(wide, (0, 1, 2))
        variance = jnp.mean((wide - mean) ** 2, (0, 1, 2))
        return ((wide - mean) * lax.rsqrt(variance + 1e-5) * scale).astype(BF16)

    def conv(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w.astype(BF16), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Any, x: Any) -> Any:
        for w1, s1, w2, s2 in params:
            h = nn.relu(norm(conv(x, w1), s1))
            x = nn.relu(x + norm(conv(h, w2), s2))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    w, s = normal(3, 3, 256, 256, dtype=jnp.float32), jnp.ones(256, jnp.float32)
    return "conv net", gradient_step(loss), ([(w, s, w, s) for _ in range(6)], normal(128, 32, 32, 256, scale=1.0))


def vision_transformer() -> Model:
    heads, width, layers = 16, 1024, 12

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        centered = wide - jnp.mean(wide, -1, keepdims=True)
        return (centered * lax.rsqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-6) * scale).astype(BF16)

    def loss(params: Any, images: Any) -> Any:
        batch, size = images.shape[:2]
        patches = images.reshape(batch, size // 16, 16, size // 16, 16, 3).swapaxes(2, 3).reshape(batch, -1, 768)
        x = patches @ params["patch"].astype(BF16)
        length = x.shape[1]
        for p in params["layers"]:
            h = norm(x, p["n1"])
            q, k, v = jnp.split(h @ p["qkv"].astype(BF16), 3, -1)
            q, k, v = (y.reshape(batch, length, heads, width // heads) for y in (q, k, v))
            attended = nn.dot_product_attention(q, k, v, implementation="cudnn").reshape(batch, length, width)
            x = x + attended @ p["out"].astype(BF16)
            x = x + nn.gelu(norm(x, p["n2"]) @ p["up"].astype(BF16)) @ p["down"].astype(BF16)
        return jnp.mean((jnp.mean(x, 1) @ params["head"].astype(BF16)).astype(jnp.float32) ** 2)

    def layer() -> Any:
        f32 = jnp.float32
        ones = jnp.ones(width, f32)
        weights = {"qkv": normal(width, 3 * width, dtype=f32), "out": normal(width, width, dtype=f32)}
        return {
            **weights,
            "up": normal(width, 4096, dtype=f32),
            "down": normal(4096, width, dtype=f32),
            "n1": ones,
            "n2": ones,
        }

    params = {
        "patch": normal(768, width, dtype=jnp.float32),
        "head": normal(width, 1000, dtype=jnp.float32),
        "layers": [layer() for _ in range(layers)],
    }
    return "vision transformer", gradient_step(loss), (params, normal(64, 256, 256, 3, scale=1.0))


def experts() -> Model:
    count, width, hidden, tokens = 8, 2048, 8192, 16384

    def loss(params: Any, x: Any) -> Any:
        scores = nn.softmax((x @ params["router"].astype(BF16)).astype(jnp.float32), -1)
        capacity = 2 * tokens // count
        gates, chosen = lax.top_k(scores.T, capacity)  # each expert chooses its tokens
        h = x[chosen]
        h = nn.gelu(jnp.einsum("ecd,edf->ecf", h, params["up"].astype(BF16)))
        h = jnp.einsum("ecf,efd->ecd", h, params["down"].astype(BF16)) * gates[..., None].astype(BF16)
        out = jnp.zeros_like(x).at[chosen.reshape(-1)].add(h.reshape(-1, width))
        return jnp.mean(out.astype(jnp.float32) ** 2)

    params = {
        "router": normal(width, count, dtype=jnp.float32),
        "up": normal(count, width, hidden, dtype=jnp.float32),
        "down": normal(count, hidden, width, dtype=jnp.float32),
    }
    return "mixture of experts", gradient_step(loss), (params, normal(tokens, width, scale=1.0))


def long_attention() -> Model:
    def loss(qkv: Any) -> Any:
        q, k, v = qkv
        return jnp.mean(
            nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").astype(jnp.float32) ** 2
        )

    q = normal(2, 8192, 16, 128, scale=1.0)
    return "attention at 8192", gradient_step(loss), ((q, q, q),)


def transformers() -> Iterator[Model]:
    for remat in (False, True):
        step = h200.training_step(jax, h200.Model(), remat, "cudnn")
        name = f"871M transformer{', remat' if remat else ''}"
        yield name, step, h200.arguments(jax, h200.Model())


def models() -> Iterator[Model]:
    for make in (mlp, conv_net, vision_transformer, experts, long_attention):
        yield make()
    yield from transformers()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", help="a chip that `shardwise calibrate` has written; by default, it is measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chip = hardware.chip(options.hardware) if options.hardware else calibrate(report=print).chip
    print(format_chip(chip))
    print(f"{'model':26} {'predicted':>11} {'measured':>11} {'error':>7}")
    rows = []
    for name, step, args in models():
        predicted = jax.simulate(step, hardware=chip)(*args)
        measured = train(step, args)
        rows.append({"model": name, "predicted": predicted.seconds, "measured": measured, "bounds": predicted.bounds})
        error = 100 * (predicted.seconds / measured - 1)
        print(f"{name:26} {predicted.seconds * 1e3:8.2f} ms {measured * 1e3:8.2f} ms {error:+6.1f}%", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def train(step: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Return the seconds of a step, whose first results are the next parameters."""
    results = step(*args)
    state = len(results) - 1 if len(results) == 4 else 1
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(10):
            results = step(*results[:state], *args[state:])
        np.asarray(results[-1])
        times.append((time.perf_counter() - start) / 10)
    return min(times)


if __name__ == "__main__":
    main()
