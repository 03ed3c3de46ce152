"""Training steps of models other than a GPT on one GPU: Shardwise, JAX and PyTorch in one table, with power and clocks.

    python -m benchmarks.gpu_models [--models llama,moe,vit] [--sides …] [--repeats 10] [--limit 100] [--json FILE]
    python -m benchmarks.gpu_models --models llama --sides kernels,fp8 --hlo FOLDER    write the HLO of these sides

llama: width 2048, 16 layers of 16 query and 4 key heads, SwiGLU of 5632, rotary embedding, vocabulary 32000, length
2048, batch 8. moe: the same with 4 layers, whose tokens go to 2 of 8 experts. vit: ViT-L/16, 64 images of 256 × 256.
All are computed in bfloat16, with float32 parameters and Adam. Attention is cuDNN's, in PyTorch that of its choice.

    torch         torch.compile, fused attention and Adam; experts by its grouped products
    torch-float8  the same with linear layers that torchao converts, if that is installed
    jax           plain functions; experts by `lax.ragged_dot`
    shardwise     the same functions
    kernels       norms, loss, products of experts and Adam by `shardwise.kernels`
    fp8           the same, with products of the layers in float8 by an FP8Policy
    fp8-split     the same, whose gradients add the parts of sums in float32 (`split_accumulator`)

Each row is a process of its own, which is ended after `--limit` seconds; the rows after it are measured all the same.
Power and clock are means while steps are timed. `--small` runs tiny models without cuDNN, to try the program on a CPU.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from benchmarks.gpu_losses import MODELS, SMALL, Decoder, Vit, parameters, random_numbers
from benchmarks.gpu_power import PowerLog

RATE, DECAY, SQUARE_DECAY, EPSILON = 1e-4, 0.9, 0.95, 1e-8
UNCORRECTED = 10**6  # a number of steps after which Adam's corrections are 1
MODULES = {
    "torch": "torch",
    "torch-float8": "torchao",
    "jax": "jax",
    "shardwise": "shardwise",
    "kernels": "shardwise",
    "fp8": "shardwise",
    "fp8-split": "shardwise",
}


@final
@dataclass(frozen=True)
class Row:
    """The measurements of one side; `error` says why there are none."""

    model: str
    side: str
    first_s: float = 0.0
    step_ms: float = 0.0
    loss: float = 0.0
    peak_gib: float = 0.0
    power_w: float = 0.0
    clock_mhz: float = 0.0
    error: str = ""

    def __str__(self) -> str:
        name = f"{self.model:8} {self.side:12}"
        if self.error:
            return f"{name} {self.error}"
        return (
            f"{name} {self.first_s:8.1f} s {self.step_ms:7.1f} ms {self.loss:8.4f} {self.peak_gib:6.1f} GiB "
            f"{self.power_w:6.0f} W {self.clock_mhz:6.0f} MHz"
        )


def training_step(library: Any, loss: Callable[..., Any], policy: Any, kernels: bool) -> Callable[..., Any]:
    """Return the step (parameters, means, squares, copy, scales, *batch) → the same, and the loss.

    The copy of the parameters in bfloat16 is None without kernels, and the scales are None without an FP8Policy.
    """
    tree, jnp = library.tree, library.numpy

    def step(params: Any, means: Any, squares: Any, copy: Any, scales: Any, *batch: Any) -> Any:
        computed = params if copy is None else copy
        if policy is None:
            value, grads = library.value_and_grad(loss)(computed, *batch)
        else:
            narrow_loss = library.strategies.mixed_precision(loss, policy)
            value, (grads, maxima) = library.value_and_grad(narrow_loss, (0, 1))(computed, scales, *batch)
            scales = scales.update(maxima)
        if kernels:
            optimizer = library.kernels.adam(RATE, DECAY, SQUARE_DECAY, EPSILON, compute_dtype=jnp.bfloat16)
            state = library.kernels.AdamState(jnp.int32(UNCORRECTED), means, squares, copy)
            params, (_, means, squares, copy) = optimizer.apply(grads, state, params)
        else:
            means = tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
            squares = tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
            params = tree.map(lambda p, m, s: p - RATE * m / (jnp.sqrt(s) + EPSILON), params, means, squares)
        return params, means, squares, copy, scales, value

    return library.jit(step, donate_argnums=(0, 1, 2, 3))  # type: ignore[no-any-return]


def random_parameters(library: Any, model: Decoder | Vit) -> Any:
    """Return the parameters, created on the device."""
    jnp, numbers = library.numpy, library.numpy.asarray(random_numbers())

    def matrix(shape: tuple[int, ...], start: int) -> Any:
        return _part(library, numbers, start, shape)

    return parameters(model, lambda size, value: jnp.full(size, value, jnp.float32), matrix)


def _part(library: Any, numbers: Any, start: int, shape: tuple[int, ...]) -> Any:
    count = 1
    for size in shape:
        count *= size
    repeated = library.numpy.tile(numbers, 2 + count // numbers.size)
    return library.lax.dynamic_slice(repeated, (start,), (count,)).reshape(shape) / shape[-2] ** 0.5


def training(side: str, model: Decoder | Vit, small: bool, hlo: Path | None = None) -> Callable[[], Any]:
    """Create the state of training; return a function that makes a step and returns the loss."""
    if side.startswith("torch"):
        module = importlib.import_module("benchmarks.gpu_models_torch")
        return module.training(model, side == "torch-float8", RATE, (DECAY, SQUARE_DECAY), EPSILON)  # type: ignore[no-any-return]
    library = importlib.import_module(MODULES[side])
    jnp, is_fp8 = library.numpy, side.startswith("fp8")
    kernels = is_fp8 or side == "kernels"
    loss = model.loss(library, None if small else "cudnn", kernels)
    batch = [jnp.asarray(x) for x in model.data()]
    params = random_parameters(library, model)
    means, squares = (library.tree.map(jnp.zeros_like, params) for _ in range(2))
    copy = library.tree.map(lambda x: x.astype(jnp.bfloat16), params) if kernels else None
    policy = None
    if is_fp8:
        policy = library.strategies.FP8Policy(split_accumulator=side == "fp8-split", precision=None)
    scales = policy.create(loss, copy, *batch) if policy is not None else None
    state = [params, means, squares, copy, scales]
    step = training_step(library, loss, policy, kernels)
    if hlo is not None:
        hlo.mkdir(parents=True, exist_ok=True)
        text = step.lower(*state, *batch).compile().as_text()  # type: ignore[attr-defined]
        (hlo / f"{type(model).__name__}-{side}.txt").write_text(text)

    def train() -> Any:
        *state[:], value = step(*state, *batch)
        return value

    return train


def measure(side: str, name: str, options: argparse.Namespace) -> Row:
    """Measure one row in this process."""
    model = (SMALL if options.small else MODELS)[name]
    if options.layers:
        model = replace(model, layers=options.layers)
    train = training(side, model, options.small, options.hlo)
    start = time.perf_counter()
    first = float(train())
    first_s, times = time.perf_counter() - start, []
    for _ in range(2):
        float(train())
    with PowerLog() as power:
        for _ in range(3):
            start = time.perf_counter()
            for _ in range(options.repeats):
                value = train()
            float(value)
            times.append((time.perf_counter() - start) / options.repeats)
    return Row(name, side, first_s, min(times) * 1e3, first, _peak_gib(side), power.watts, power.megahertz)


def _peak_gib(side: str) -> float:
    if side.startswith("torch"):
        return importlib.import_module("benchmarks.gpu_models_torch").peak_gib()  # type: ignore[no-any-return]
    stats = importlib.import_module(MODULES[side]).devices()[0].memory_stats() or {}
    return float(stats.get("peak_bytes_in_use", 0) / 2**30)


def run_row(side: str, name: str, options: argparse.Namespace) -> Row:
    """Measure a row in a new process: a GPU has one client, and the peak of memory is that of the row."""
    if find_spec(MODULES[side]) is None:
        return Row(name, side, error=f"{MODULES[side]} is not installed")
    pairs = {"--models": name, "--sides": side, "--repeats": options.repeats, "--layers": options.layers}
    pairs["--hlo"] = options.hlo
    arguments = [str(x) for pair in pairs.items() if pair[1] is not None for x in pair]
    command = [sys.executable, "-m", "benchmarks.gpu_models", "--row", *arguments, *["--small"] * options.small]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return Row(name, side, error=f"was ended after {options.limit} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Row(name, side, error=f"failed with status {done.returncode}: {last[:300]}")
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, separated by commas")
    parser.add_argument("--sides", default=",".join(MODULES), help="some of them, separated by commas")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--limit", type=float, default=100, help="seconds per row")
    parser.add_argument("--hlo", type=Path, help="write the optimized HLO to this folder")
    parser.add_argument("--small", action="store_true", help="run tiny models without cuDNN")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", action="store_true", help="measure one row in this process, and print it as JSON")
    options = parser.parse_args()
    runs = [(side, name) for name in options.models.split(",") for side in options.sides.split(",")]
    if options.row:
        ((side, name),) = runs
        print(json.dumps(asdict(measure(side, name, options))))
        return
    print(
        f"{'model':8} {'side':12} {'first call':>10} {'step':>10} {'loss':>8} {'peak':>10} {'power':>8} {'clock':>10}"
    )
    rows = []
    for side, name in runs:
        rows.append(run_row(side, name, options))
        print(rows[-1], flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
