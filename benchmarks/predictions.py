"""Predicted and measured times of training steps on the accelerator of this machine.

    python -m benchmarks.predictions [--hardware CHIP] [--recorded] [--json FILE]

Measures the chip as `shardwise calibrate` does, predicts every model by `simulate` with these figures, and times it. No
figure is fitted to a model. With `--recorded`, predictions for the chip `h200` are compared with recorded times.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks import h200
from shardwise import lax, nn
from shardwise.compiler.plan import hardware
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.chip_table import format_chip
from shardwise.explain.calibrate import calibrate, random_array
from shardwise.explain.simulate import Simulation
from shardwise.nn.activations import _approximate_gelu

BF16 = jnp.bfloat16
Arguments = Callable[[Callable[..., Any]], tuple[Any, ...]]  # from a function that returns an array of a shape
Model = tuple[str, Callable[..., Any], Arguments]  # the name, the step, and its arguments
# The times in milliseconds that were measured on one H200 with jaxlib 0.11.2.
MEASURED_ON_H200 = {
    "MLP": 18.5,
    "conv net": 11.3,
    "vision transformer": 33.7,
    "mixture of experts": 10.3,
    "attention at 8192": 3.8,
    "871M transformer": 171.1,
    "871M transformer, remat": 205.5,
}


def normal(*shape: int, dtype: Any = BF16, scale: float = 0.02) -> Any:
    """Return random numbers, made on the device."""
    return random_array(shape, dtype, scale)


def zeros(*shape: int, dtype: Any = BF16, scale: float = 1.0) -> Any:
    """Return an array of the same type as `normal`, for traces."""
    return jnp.zeros(shape, dtype)


def gradient_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value

    return jax.jit(step)


def mlp() -> Model:
    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = gelu(x @ w.astype(BF16))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def arguments(array: Any) -> Any:
        return [array(8192, 8192, dtype=jnp.float32) for _ in range(4)], array(8192, 8192)

    return "MLP", gradient_step(loss), arguments


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

    def arguments(array: Any) -> Any:
        w, s = array(3, 3, 256, 256, dtype=jnp.float32), jnp.ones(256, jnp.float32)
        return [(w, s, w, s) for _ in range(6)], array(128, 32, 32, 256, scale=1.0)

    return "conv net", gradient_step(loss), arguments


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
            x = x + gelu(norm(x, p["n2"]) @ p["up"].astype(BF16)) @ p["down"].astype(BF16)
        return jnp.mean((jnp.mean(x, 1) @ params["head"].astype(BF16)).astype(jnp.float32) ** 2)

    def arguments(array: Any) -> Any:
        ones = jnp.ones(width, jnp.float32)
        weight = partial(array, dtype=jnp.float32)

        def layer() -> Any:
            weights = {"qkv": weight(width, 3 * width), "out": weight(width, width)}
            return {**weights, "up": weight(width, 4096), "down": weight(4096, width), "n1": ones, "n2": ones}

        ends = {"patch": weight(768, width), "head": weight(width, 1000)}
        return {**ends, "layers": [layer() for _ in range(layers)]}, array(64, 256, 256, 3, scale=1.0)

    return "vision transformer", gradient_step(loss), arguments


def experts() -> Model:
    count, width, hidden, tokens = 8, 2048, 8192, 16384

    def loss(params: Any, x: Any) -> Any:
        scores = nn.softmax((x @ params["router"].astype(BF16)).astype(jnp.float32), -1)
        capacity = 2 * tokens // count
        gates, chosen = lax.top_k(scores.T, capacity)  # each expert chooses its tokens
        h = x[chosen]
        h = gelu(jnp.einsum("ecd,edf->ecf", h, params["up"].astype(BF16)))
        h = jnp.einsum("ecf,efd->ecd", h, params["down"].astype(BF16)) * gates[..., None].astype(BF16)
        out = jnp.zeros_like(x).at[chosen.reshape(-1)].add(h.reshape(-1, width))
        return jnp.mean(out.astype(jnp.float32) ** 2)

    def arguments(array: Any) -> Any:
        weight = partial(array, dtype=jnp.float32)
        up, down = weight(count, width, hidden), weight(count, hidden, width)
        return {"router": weight(width, count), "up": up, "down": down}, array(tokens, width, scale=1.0)

    return "mixture of experts", gradient_step(loss), arguments


def long_attention() -> Model:
    def loss(qkv: Any) -> Any:
        q, k, v = qkv
        return jnp.mean(
            nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").astype(jnp.float32) ** 2
        )

    def arguments(array: Any) -> Any:
        q = array(2, 8192, 16, 128, scale=1.0)
        return ((q, q, q),)

    return "attention at 8192", gradient_step(loss), arguments


def transformers() -> Iterator[Model]:
    for remat in (False, True):
        loss = h200.loss_function(jax, h200.Model(), remat, "cudnn", activation=gelu)
        step = h200.training_step(jax, loss)
        yield f"871M transformer{', remat' if remat else ''}", step, _transformer_arguments


def _transformer_arguments(array: Any) -> Any:
    matrix = None if array is normal else lambda rows, columns: array(rows, columns, dtype=jnp.float32)
    return h200.arguments(jax, h200.Model(), matrix)


def models() -> Iterator[Model]:
    for make in (mlp, conv_net, vision_transformer, experts, long_attention):
        yield make()
    yield from transformers()


def predict(step: Callable[..., Any], arguments: Arguments, chip: Chip | str) -> Simulation:
    """Simulate a step, for the types of its arguments alone."""
    return jax.simulate(step, hardware=chip)(*jax.eval_shape(lambda: arguments(zeros)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", help="a chip that `shardwise calibrate` has written; by default, it is measured")
    parser.add_argument("--recorded", action="store_true", help="compare with recorded times of an H200: run nothing")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    named = options.hardware or ("h200" if options.recorded else "")
    chip = hardware.chip(named) if named else calibrate(report=print).chip
    print(format_chip(chip))
    print(f"{'model':26} {'predicted':>11} {'measured':>11} {'error':>7}")
    rows = []
    for name, step, arguments in models():
        predicted = predict(step, arguments, chip)
        measured = MEASURED_ON_H200[name] / 1e3 if options.recorded else train(step, arguments(normal))
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


# The recorded steps differentiated gelu term by term; `nn.gelu` has a derivative of its own since then.
gelu = _approximate_gelu.fun


if __name__ == "__main__":
    main()
