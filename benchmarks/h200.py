"""A training step of an 871M-parameter transformer on one GPU: Shardwise compared with JAX.

    python -m benchmarks.h200 [--layers 16] [--repeats 10] [--json FILE]
    python -m benchmarks.h200 --scan    the layers in a loop, with stacked weights
    python -m benchmarks.h200 --flax    the same model in Flax NNX, with Optax
    python -m benchmarks.h200 --kernels --sides shardwise    norms and the loss by `shardwise.kernels`
    python -m benchmarks.h200 --adam --sides shardwise       the optimizer by `shardwise.kernels`
    python -m benchmarks.h200 --kernels --fp8 --sides shardwise    products with the layers' weights in float8, too
    python -m benchmarks.h200 --kernels --fp8 --fp8-head …         and the product with the embedding, which is the head
    python -m benchmarks.h200 --kernels --fp8 --fp8-current …      and scales of weights from the new parameters
    python -m benchmarks.h200 --kernels --fp8 --fp8-split …        and gradients with a split accumulator

Vocabulary 32000, width 2048, 16 layers of 16 heads, hidden 8192, length 2048, batch 8; computed in bfloat16, with
float32 parameters and Adam moments and tied embeddings. Attention uses cuDNN. A library that is not installed is
skipped. `--small` runs a tiny model without cuDNN, to try the program on a CPU.
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

RATE, DECAY, SQUARE_DECAY, EPSILON = 1e-4, 0.9, 0.95, 1e-8
UNCORRECTED = 10**6  # a number of steps after which Adam's corrections are 1


@final
@dataclass(frozen=True)
class Model:
    """The sizes of the model."""

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


SMALL = Model(words=64, width=32, heads=2, hidden=64, length=16, batch=2)


def loss_function(
    library: Any,
    model: Model,
    remat: bool,
    attention: str | None,
    kernels: bool = False,
    activation: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """Return the loss: (parameters, tokens) → f32. By default the activation is the library's `gelu`."""
    jnp, lax, nn = library.numpy, library.lax, library.nn
    activate = activation or nn.gelu
    compute_dtype = jnp.bfloat16

    def rms_norm(x: Any, scale: Any) -> Any:
        x32 = x.astype(jnp.float32)
        return (x32 * lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6) * scale).astype(compute_dtype)

    def add_and_norm(x: Any, delta: Any, scale: Any) -> Any:
        if kernels:
            return library.kernels.rms_norm(x, scale, residual=delta)
        return x + delta, rms_norm(x + delta, scale)

    def layer(state: Any, weights: Any) -> Any:
        x, delta = state
        batch, length, width = x.shape
        shape = (batch, length, model.heads, width // model.heads)
        x, h = add_and_norm(x, delta, weights["norm1"])
        q, k, v = (jnp.dot(h, weights[name].astype(compute_dtype)).reshape(shape) for name in ("q", "k", "v"))
        attended = nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        delta = jnp.dot(attended.reshape(batch, length, width), weights["out"].astype(compute_dtype))
        x, h = add_and_norm(x, delta, weights["norm2"])
        h = activate(jnp.dot(h, weights["up"].astype(compute_dtype)))
        return x, jnp.dot(h, weights["down"].astype(compute_dtype))

    block = library.checkpoint(layer) if remat else layer

    def loss(params: Any, tokens: Any) -> Any:
        embed = params["embed"].astype(compute_dtype)
        x = embed[tokens[:, :-1]]
        state = x, jnp.zeros_like(x)  # the residual stream, and what is added to it next
        if isinstance(params["layers"], list):
            for weights in params["layers"]:
                state = block(state, weights)
        else:  # the weights of all layers are stacked
            state, _ = lax.scan(lambda state, weights: (block(state, weights), None), state, params["layers"])
        _, h = add_and_norm(*state, params["norm"])
        logits = jnp.dot(h, embed.T)
        if kernels:
            return jnp.mean(library.kernels.cross_entropy(logits, tokens[:, 1:]))
        logits = logits.astype(jnp.float32)
        total = nn.logsumexp(logits, axis=-1)
        target_logits = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(total - target_logits)

    return loss


def training_step(
    library: Any, loss: Callable[..., Any], policy: Any = None, own_adam: bool = False, current: bool = False
) -> Callable[..., Any]:
    """Return the step (parameters, means, squares, tokens) → (parameters, means, squares, loss).

    With an FP8Policy, the scales are an argument and a result after the squares; with `current`, those of weights are
    computed from the new parameters. With `own_adam`, the parameters are a pair: those of float32, and a copy in the
    compute dtype.
    """
    jnp = library.numpy

    def adam(params: Any, means: Any, squares: Any, grads: Any) -> Any:
        means = library.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
        squares = library.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
        params = library.tree.map(lambda p, m, s: p - RATE * m / (jnp.sqrt(s) + EPSILON), params, means, squares)
        return params, means, squares

    def step(params: Any, means: Any, squares: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, tokens)
        return *adam(params, means, squares, grads), value

    def fused_step(params: Any, means: Any, squares: Any, tokens: Any) -> Any:
        master, copy = params
        optimizer = library.kernels.adam(RATE, DECAY, SQUARE_DECAY, EPSILON, compute_dtype=jnp.bfloat16)
        value, grads = library.value_and_grad(loss)(copy, tokens)
        state = library.kernels.AdamState(jnp.int32(UNCORRECTED), means, squares, copy)
        master, (_, means, squares, copy) = optimizer.apply(grads, state, master)
        return (master, copy), means, squares, value

    def fp8_step(params: Any, means: Any, squares: Any, scales: Any, tokens: Any) -> Any:
        fp8_loss = library.strategies.mixed_precision(loss, policy)
        value, (grads, maxima) = library.value_and_grad(fp8_loss, (0, 1))(params, scales, tokens)
        params, means, squares = adam(params, means, squares, grads)
        return params, means, squares, scales.update(maxima, params if current else None), value

    chosen = fused_step if own_adam else step if policy is None else fp8_step
    return library.jit(chosen, donate_argnums=(0, 1, 2))  # type: ignore[no-any-return]


def training(
    library: Any,
    model: Model,
    remat: bool,
    attention: str | None,
    scan: bool,
    kernels: bool = False,
    adam: bool = False,
    fp8: bool = False,
    fp8_head: bool = False,
    fp8_current: bool = False,
    fp8_split: bool = False,
) -> Callable[[], Any]:
    """Create the parameters and moments; return a function that makes a step and returns the loss."""
    *state, tokens = arguments(library, model)
    if scan:
        for tree in state:
            tree["layers"] = library.tree.map(lambda *weights: library.numpy.stack(weights), *tree["layers"])
    loss = loss_function(library, model, remat, attention, kernels)
    policy = None
    if fp8:
        policy = library.strategies.FP8Policy(
            embedding=fp8_head, split_accumulator=fp8_split, precision=None
        )  # the loss casts its parameters itself
    if policy is not None:
        state.append(policy.create(loss, state[0], tokens))
    if adam:
        compute_dtype = library.numpy.bfloat16
        state[0] = state[0], library.tree.map(lambda x: library.numpy.asarray(x, compute_dtype), state[0])
    step = training_step(library, loss, policy, adam, fp8_current)

    def train() -> Any:
        *state[:], loss = step(*state, tokens)
        return loss

    return train


def arguments(library: Any, model: Model, matrix: Callable[[int, int], Any] | None = None) -> tuple[Any, ...]:
    """Return parameters, means, squares and tokens. `matrix` returns a weight; by default, random numbers."""
    rng = np.random.default_rng(0)
    d, f = model.width, model.hidden

    def random_matrix(rows: int, columns: int) -> Any:
        return library.numpy.asarray(rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(rows)))

    matrix = matrix or random_matrix

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
    """The measurements of one library."""

    side: str
    remat: bool
    compile_s: float
    step_ms: float
    loss: float
    peak_gib: float


def measure(name: str, model: Model, remat: bool, options: argparse.Namespace) -> Row:
    library = importlib.import_module(name)
    attention = None if options.small else "cudnn"
    if options.flax:
        if name == "shardwise":
            library.as_jax()
        train = importlib.import_module("benchmarks.h200_flax").training(model, remat, attention)
    else:
        of_ours = (options.kernels, options.adam, options.fp8, options.fp8_head, options.fp8_current, options.fp8_split)
        train = training(library, model, remat, attention, options.scan, *of_ours)
    start = time.perf_counter()
    first = float(train())
    compiled = time.perf_counter() - start
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(options.repeats):
            loss = train()
        float(loss)
        times.append((time.perf_counter() - start) / options.repeats)
    stats = library.devices()[0].memory_stats() or {}
    return Row(name, remat, compiled, min(times) * 1e3, first, stats.get("peak_bytes_in_use", 0) / 2**30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=Model.layers)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--sides", default="shardwise,jax")
    parser.add_argument("--remat", choices=("no", "yes"), help="run with or without rematerialization; default: both")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--scan", action="store_true", help="run the layers in a loop, with stacked weights")
    form.add_argument("--flax", action="store_true", help="run the model in Flax NNX, with Optax")
    parser.add_argument("--kernels", action="store_true", help="compute norms and the loss by shardwise.kernels")
    optional = parser.add_mutually_exclusive_group()
    optional.add_argument("--adam", action="store_true", help="update the parameters by shardwise.kernels.adam")
    optional.add_argument("--fp8", action="store_true", help="compute products with the layers' weights in float8")
    parser.add_argument("--fp8-head", action="store_true", help="with --fp8, the product with the embedding too")
    parser.add_argument("--fp8-split", action="store_true", help="with --fp8, gradients with a split accumulator")
    parser.add_argument("--fp8-current", action="store_true", help="with --fp8, scale weights by the new parameters")
    parser.add_argument("--small", action="store_true", help="run a tiny model without cuDNN")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = replace(SMALL if options.small else Model(), layers=options.layers)
    runs = [(side, remat) for remat in _remats(options.remat) for side in options.sides.split(",")]
    if len(runs) > 1:
        print(f"{model.parameters / 1e6:.0f}M parameters")
        print(f"{'side':12} {'remat':6} {'first call':>10} {'step':>10} {'loss':>8} {'peak':>9}", flush=True)
    rows: list[Row] = []
    for side, remat in runs:
        if find_spec(side) is None:
            print(f"{side:12} is not installed")
        elif len(runs) > 1:
            rows.append(_run_in_subprocess(side, remat, options))
        else:
            row = measure(side, model, remat == "yes", options)
            rows.append(row)
            print(
                f"{row.side:12} {remat:6} {row.compile_s:8.1f} s {row.step_ms:7.1f} ms "
                f"{row.loss:8.4f} {row.peak_gib:5.1f} GiB",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def _remats(choice: str | None) -> Sequence[str]:
    return ("no", "yes") if choice is None else (choice,)


def _run_in_subprocess(side: str, remat: str, options: argparse.Namespace) -> Row:
    """Measure one row in a new process: a GPU has one client, and the peak of memory is that of this row."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rows.json"
        pairs = {
            "--layers": options.layers,
            "--repeats": options.repeats,
            "--sides": side,
            "--remat": remat,
            "--json": report,
        }
        names = ("adam", "flax", "fp8", "fp8_head", "fp8_current", "fp8_split", "kernels", "scan", "small")
        flags = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
        arguments = [str(x) for pair in pairs.items() for x in pair]
        command = [sys.executable, "-m", "benchmarks.h200", *flags, *arguments]
        subprocess.run(command, check=True)
        return Row(**json.loads(report.read_text())[0])


if __name__ == "__main__":
    main()
