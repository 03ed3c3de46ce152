"""Does FP8 train as bfloat16 does? A small GPT on two tasks, in both precisions, with several seeds.

    python -m benchmarks.fp8_convergence [--steps 2000] [--seeds 3] [--json FILE]
    python -m benchmarks.fp8_convergence --plot FILE.svg --json FILE    draw the curves of an earlier run

The tasks are the characters of `examples/text.txt`, of which the last tenth is held out, and a synthetic language whose
entropy is known: each symbol is drawn from a distribution that the two symbols before it select. `--small` trains a
tiny model for a few steps, to try the program on a CPU.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax, nn, strategies
from shardwise.base.lazy import lazy_module

figures = lazy_module("matplotlib.figure")  # only `--plot` needs it

TEXT = Path(__file__).parent.parent / "examples" / "text.txt"
SYMBOLS, CONCENTRATION = 32, 0.2  # of the synthetic language
RATE, WARMUP, DECAY, SQUARE_DECAY, EPSILON = 1e-3, 100, 0.9, 0.98, 1e-8
STEPS_PER_CALL = 50
PRECISIONS = ("bf16", "fp8")


@final
@dataclass(frozen=True)
class Model:
    """The sizes of the model, and of a batch."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    length: int = 128
    batch: int = 64


SMALL = Model(width=32, layers=2, heads=2, length=16, batch=4)


@final
@dataclass(frozen=True)
class Task:
    """Sequences of symbols, [count, length], as training data and held out; the entropy per symbol if it is known."""

    name: str
    symbols: int
    training: Any
    held_out: Any
    entropy: float | None = None


@final
@dataclass(frozen=True)
class Run:
    """The losses of one run: of training and of the held-out data, every `STEPS_PER_CALL` steps."""

    task: str
    precision: str
    seed: int
    training: list[float]
    held_out: list[float]
    entropy: float | None


def text_task() -> Task:
    data = np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int32)
    symbols, codes = np.unique(data, return_inverse=True)
    split = len(codes) * 9 // 10
    codes = codes.astype(np.int32)
    return Task("text", -(-len(symbols) // 16) * 16, codes[None, :split], codes[None, split:])


def synthetic_task(chains: int, length: int) -> Task:
    rng = np.random.default_rng(0)
    table = rng.dirichlet([CONCENTRATION] * SYMBOLS, SYMBOLS * SYMBOLS)  # context → distribution of the next symbol
    transitions = table.reshape(SYMBOLS, SYMBOLS, SYMBOLS)
    share = np.full((SYMBOLS, SYMBOLS), SYMBOLS**-2.0)  # of each context, in the long run
    for _ in range(1000):
        share = np.einsum("ab,abc->bc", share, transitions)
    entropy = -(share[..., None] * transitions * np.log(np.maximum(transitions, 1e-300))).sum()
    cumulative = table.cumsum(-1)
    context, columns = rng.integers(0, SYMBOLS**2, chains), []
    for _ in range(length):
        symbol = (cumulative[context] < rng.random((chains, 1))).sum(-1).clip(max=SYMBOLS - 1)
        context = context % SYMBOLS * SYMBOLS + symbol
        columns.append(symbol)
    data = np.stack(columns, 1).astype(np.int32)
    held_out = max(1, chains // 16)
    return Task("synthetic", SYMBOLS, data[held_out:], data[:held_out], float(entropy))


def init(model: Model, symbols: int, key: Any) -> Any:
    d, keys = model.width, iter(jax.random.split(key, 2 + 4 * model.layers))

    def matrix(rows: int, columns: int) -> Any:
        return jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    def layer() -> dict[str, Any]:
        ones = {name: jnp.ones(d) for name in ("norm1", "norm2")}
        matrices = {"qkv": matrix(d, 3 * d), "out": matrix(d, d), "up": matrix(d, 4 * d), "down": matrix(4 * d, d)}
        return {**ones, **matrices}

    embed = {"embed": matrix(symbols, d), "position_embed": matrix(model.length, d)}
    return {**embed, "layers": [layer() for _ in range(model.layers)], "norm": jnp.ones(d)}


def loss(model: Model, params: Any, tokens: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        shape = (*x.shape[:2], model.heads, model.width // model.heads)
        h = jax.kernels.rms_norm(x, w["norm1"])
        q, k, v = (z.reshape(shape) for z in jnp.split(h @ w["qkv"], 3, -1))
        x = x + nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["out"]
        h = jax.kernels.rms_norm(x, w["norm2"])
        return x + nn.gelu(h @ w["up"]) @ w["down"]

    x = params["embed"][tokens[:, :-1]] + params["position_embed"]
    for weights in params["layers"]:
        x = layer(x, weights)
    logits = jax.kernels.rms_norm(x, params["norm"]) @ params["embed"].T
    return jnp.mean(jax.kernels.cross_entropy(logits, tokens[:, 1:]))


def windows(data: Any, count: int, size: int, key: Any) -> Any:
    """Return random windows of the sequences."""
    rows, starts = jax.random.split(key)
    row = jax.random.randint(rows, (count, 1), 0, data.shape[0])
    start = jax.random.randint(starts, (count, 1), 0, data.shape[1] - size + 1)
    return data[row, start + jnp.arange(size)]


def rate(step: Any, steps: int) -> Any:
    """Return the learning rate: a linear warmup, then a cosine."""
    progress = jnp.clip((step - WARMUP) / max(1, steps - WARMUP), 0, 1)
    return RATE * jnp.minimum((step + 1) / WARMUP, 0.05 + 0.475 * (1 + jnp.cos(np.pi * progress)))


def trainer(model: Model, task: Task, precision: str, steps: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return functions: key → state; (state, training data, held-out data) → state, mean loss, held-out loss."""
    function = partial(loss, model)
    policy = strategies.FP8Policy() if precision == "fp8" else None
    computed = strategies.mixed_precision(function) if policy is None else strategies.mixed_precision(function, policy)

    def start(key: Any, data: Any) -> Any:
        params = init(model, task.symbols, key)
        zeros = jax.tree.map(jnp.zeros_like, params)
        scales = policy and policy.create(function, params, windows(data, model.batch, model.length + 1, key))
        return params, zeros, zeros, scales, jnp.int32(0), key

    def step(state: Any, data: Any) -> Any:
        params, means, squares, scales, number, key = state
        key, batch_key = jax.random.split(key)
        tokens = windows(data, model.batch, model.length + 1, batch_key)
        if scales is None:
            value, grads = jax.value_and_grad(computed)(params, tokens)
        else:
            value, (grads, maxima) = jax.value_and_grad(computed, (0, 1))(params, scales, tokens)
            scales = scales.update(maxima)
        means = jax.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
        squares = jax.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
        count = (number + 1).astype(jnp.float32)
        corrected = rate(number, steps) / (1 - DECAY**count)
        params = jax.tree.map(
            lambda p, m, s: p - corrected * m / (jnp.sqrt(s / (1 - SQUARE_DECAY**count)) + EPSILON),
            params,
            means,
            squares,
        )
        return (params, means, squares, scales, number + 1, key), value

    @jax.jit
    def train(state: Any, data: Any, held_out: Any) -> Any:
        state, losses = lax.scan(lambda state, _: step(state, data), state, None, length=STEPS_PER_CALL)
        arguments = (state[0],) if state[3] is None else (state[0], state[3])
        tokens = windows(held_out, 4 * model.batch, model.length + 1, jax.random.key(1))
        return state, losses.mean(), computed(*arguments, tokens)

    return start, train


def runs(model: Model, task: Task, steps: int, seeds: int) -> Iterator[Run]:
    data, held_out = map(jnp.asarray, (task.training, task.held_out))
    for precision in PRECISIONS:
        start, train = trainer(model, task, precision, steps)
        for seed in range(seeds):
            state, training, validation = start(jax.random.key(seed), data), [], []
            for _ in range(-(-steps // STEPS_PER_CALL)):
                state, mean, held_out_loss = train(state, data, held_out)
                training.append(mean)
                validation.append(held_out_loss)
            yield Run(task.name, precision, seed, [*map(float, training)], [*map(float, validation)], task.entropy)


def table(results: list[Run]) -> Iterator[str]:
    """Yield the held-out losses: the least one and the last one of each run, and FP8's mean relative to bf16's."""
    yield f"{'task':10} {'':5} {'least held-out losses':>30} {'last held-out losses':>30}"
    for task in dict.fromkeys(run.task for run in results):
        means = {}
        for precision in PRECISIONS:
            chosen = [run for run in results if (run.task, run.precision) == (task, precision)]
            ends = [min(run.held_out) for run in chosen], [run.held_out[-1] for run in chosen]
            means[precision] = [np.mean(losses) for losses in ends]
            texts = (" ".join(f"{x:.4f}" for x in losses) for losses in ends)
            yield f"{task:10} {precision:5} " + " ".join(f"{text:>30}" for text in texts)
        ratios = [fp8 / bf16 - 1 for bf16, fp8 in zip(means["bf16"], means["fp8"], strict=True)]
        entropy = next(run.entropy for run in results if run.task == task)
        known = "" if entropy is None else f"; the entropy is {entropy:.4f}"
        least, last = (f"{100 * ratio:+.2f}%" for ratio in ratios)
        yield f"{task:10} means of fp8 against bf16: {least} (least), {last} (last){known}"


def plot(results: list[Run], file: Path) -> None:
    """Draw the held-out losses of all runs; the suffix of `file` is the format."""
    tasks = list(dict.fromkeys(run.task for run in results))
    figure = figures.Figure(figsize=(4.5 * len(tasks), 3.2), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for run in results:
            if run.task == task:
                steps = STEPS_PER_CALL * (1 + np.arange(len(run.held_out)))
                label = run.precision if run.seed == 0 else None
                colour = {"bf16": "tab:blue", "fp8": "tab:orange"}[run.precision]
                axes.plot(steps, run.held_out, color=colour, linewidth=0.8, label=label)
                if run.entropy is not None and run.seed == 0 and run.precision == "fp8":
                    axes.axhline(run.entropy, color="black", linewidth=0.8, linestyle=":", label="entropy")
        axes.set_title(task, fontsize="medium")
        axes.set_xlabel("step")
        axes.legend(fontsize="small")
    figure.supylabel("held-out loss (nats per symbol)", fontsize="medium")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="train a tiny model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="draw the runs of the file `--json`")
    options = parser.parse_args()
    if options.plot:
        plot([Run(**row) for row in json.loads(options.json.read_text())], options.plot)
        return
    model = SMALL if options.small else Model()
    chains = (64, 256) if options.small else (4096, 4096)
    results: list[Run] = []
    for task in (text_task(), synthetic_task(*chains)):
        for run in runs(model, task, options.steps, options.seeds):
            results.append(run)
            print(f"{run.task:10} {run.precision:5} seed {run.seed}: {run.held_out[-1]:.4f}", flush=True)
    print("\n".join(table(results)))
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in results]))


if __name__ == "__main__":
    main()
