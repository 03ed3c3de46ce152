"""A training step of an 871M-parameter transformer on one GPU: ours beside JAX's and PyTorch's, in one run.

    python -m benchmarks.h200 [--layers 16] [--repeats 10] [--json FILE]

V 32000, D 2048, 16 layers of 16 heads, F 8192, T 2048, B 8; computed in bf16, parameters and Adam's moments in f32, the
embedding tied. Attention is cuDNN's on every side. Peers that are not installed are left out, and said to be.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

RATE, DECAY, SQUARE_DECAY, TINY = 1e-4, 0.9, 0.95, 1e-8


@final
@dataclass(frozen=True)
class Model:
    """Sizes."""

    words: int = 32000
    width: int = 2048
    layers: int = 16
    heads: int = 16
    hidden: int = 8192
    length: int = 2048
    batch: int = 8

    @property
    def parameters(self) -> int:
        layer = 4 * self.width**2 + 2 * self.width * self.hidden + 2 * self.width
        return self.words * self.width + self.layers * layer + self.width


def training_step(library: Any, model: Model, remat: bool, attention: str | None) -> Callable[..., Any]:
    """(parameters, means, squares, tokens) → (parameters, means, squares, loss), with JAX's names."""
    jnp, lax, nn = library.numpy, library.lax, library.nn
    narrow = jnp.bfloat16

    def normed(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(narrow)

    def layer(x: Any, weights: Any) -> Any:
        batch, length, width = x.shape
        shape = (batch, length, model.heads, width // model.heads)
        h = normed(x, weights["norm1"])
        q, k, v = (jnp.dot(h, weights[name].astype(narrow)).reshape(shape) for name in ("q", "k", "v"))
        mixed = nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        x = x + jnp.dot(mixed.reshape(batch, length, width), weights["out"].astype(narrow))
        h = nn.gelu(jnp.dot(normed(x, weights["norm2"]), weights["up"].astype(narrow)))
        return x + jnp.dot(h, weights["down"].astype(narrow))

    block = library.checkpoint(layer) if remat else layer

    def loss(params: Any, tokens: Any) -> Any:
        embed = params["embed"].astype(narrow)
        x = embed[tokens[:, :-1]]
        for weights in params["layers"]:
            x = block(x, weights)
        logits = jnp.dot(normed(x, params["norm"]), embed.T).astype(jnp.float32)
        total = nn.logsumexp(logits, axis=-1)
        right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(total - right)

    def step(params: Any, means: Any, squares: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, tokens)
        means = library.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
        squares = library.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
        params = library.tree.map(lambda p, m, s: p - RATE * m / (jnp.sqrt(s) + TINY), params, means, squares)
        return params, means, squares, value

    return library.jit(step, donate_argnums=(0, 1, 2))  # type: ignore[no-any-return]


def arguments(library: Any, model: Model) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    d, f = model.width, model.hidden

    def matrix(rows: int, columns: int) -> Any:
        return library.numpy.asarray(rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(rows)))

    def layer() -> dict[str, Any]:
        square = {name: matrix(d, d) for name in ("q", "k", "v", "out")}
        ones = {name: library.numpy.ones(d, np.float32) for name in ("norm1", "norm2")}
        return {**square, **ones, "up": matrix(d, f), "down": matrix(f, d)}

    params = {
        "embed": matrix(model.words, d) * 4,
        "norm": library.numpy.ones(d, np.float32),
        "layers": [layer() for _ in range(model.layers)],
    }
    means, squares = (library.tree.map(library.numpy.zeros_like, params) for _ in range(2))
    tokens = library.numpy.asarray(rng.integers(0, model.words, (model.batch, model.length + 1)).astype(np.int32))
    return params, means, squares, tokens


@final
@dataclass(frozen=True)
class Row:
    """What was measured on one side."""

    side: str
    remat: bool
    compile_s: float
    step_ms: float
    loss: float
    peak_gib: float


def measured(name: str, model: Model, remat: bool, repeats: int, attention: str | None) -> Row:
    library = importlib.import_module(name)
    params, means, squares, tokens = arguments(library, model)
    step = training_step(library, model, remat, attention)
    start = time.perf_counter()
    params, means, squares, loss = step(params, means, squares, tokens)
    first = float(loss)
    compiled = time.perf_counter() - start
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            params, means, squares, loss = step(params, means, squares, tokens)
        float(loss)
        times.append((time.perf_counter() - start) / repeats)
    stats = library.devices()[0].memory_stats() or {}
    return Row(name, remat, compiled, min(times) * 1e3, first, stats.get("peak_bytes_in_use", 0) / 2**30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=Model.layers)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--sides", default="shardwise,jax")
    parser.add_argument("--remat", choices=("no", "yes"), help="one of the two rows of a side; both unless given")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = replace(Model(), layers=given.layers)
    wanted = [(side, remat) for remat in _remats(given.remat) for side in given.sides.split(",")]
    if len(wanted) > 1:
        print(f"{model.parameters / 1e6:.0f}M parameters")
        print(f"{'side':12} {'remat':6} {'first call':>10} {'a step':>10} {'loss':>8} {'peak':>9}", flush=True)
    rows: list[Row] = []
    for side, remat in wanted:
        if find_spec(side) is None:
            print(f"{side:12} is not installed")
        elif len(wanted) > 1:
            rows.append(_in_a_process_of_its_own(side, remat, given))
        else:
            row = measured(side, model, remat == "yes", given.repeats, "cudnn")
            rows.append(row)
            print(
                f"{row.side:12} {remat:6} {row.compile_s:8.1f} s {row.step_ms:7.1f} ms "
                f"{row.loss:8.4f} {row.peak_gib:5.1f} GiB",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def _remats(asked: str | None) -> Sequence[str]:
    return ("no", "yes") if asked is None else (asked,)


def _in_a_process_of_its_own(side: str, remat: str, given: argparse.Namespace) -> Row:
    """One GPU client a process; and the peak of memory is that of the row alone."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        options = {
            "--layers": given.layers,
            "--repeats": given.repeats,
            "--sides": side,
            "--remat": remat,
            "--json": found,
        }
        command = [sys.executable, "-m", "benchmarks.h200", *(str(x) for pair in options.items() for x in pair)]
        subprocess.run(command, check=True)
        return Row(**json.loads(found.read_text())[0])


if __name__ == "__main__":
    main()
