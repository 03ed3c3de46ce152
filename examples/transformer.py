"""Train a small character-level transformer on a 4×2 mesh, and compare with the same training on one device.

The batch is sharded along `data`; heads, hidden units and the alphabet along `model` (49 characters over 2 devices,
which is uneven). The functions have no sharding annotations: Shardwise derives all shardings from those of the
arguments.
"""

import argparse
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

TEXT = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
ALPHABET = sorted(set(TEXT))
LAYERS, WIDTH, HEADS, HIDDEN = 2, 64, 4, 256
BATCH, LENGTH = 16, 64
STEPS, RATE, DECAY, SQUARE_DECAY, EPSILON = 300, 3e-3, 0.9, 0.99, 1e-8

COLUMNS, ROWS, REPLICATED = P(None, "model"), P("model", None), P()
LAYER_LAYOUTS = {
    **dict.fromkeys(("q", "k", "v", "up"), COLUMNS),
    **dict.fromkeys(("out", "down"), ROWS),
    **dict.fromkeys(("norm1", "norm2"), REPLICATED),
}
LAYOUTS = {"embed": ROWS, "positions": REPLICATED, "norm": REPLICATED, "layers": [LAYER_LAYOUTS] * LAYERS}
BATCHES = P("data", None)


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(x, weights):
    batch, length, _ = x.shape
    shape = (batch, length, HEADS, WIDTH // HEADS)
    q, k, v = ((x @ weights[name]).reshape(shape) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    attended = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(jnp.where(causal, scores, -1e9)), v)
    return attended.reshape(batch, length, WIDTH) @ weights["out"]


def predict(params, tokens):
    """Return the logits of the next character at every position."""
    x = params["embed"][tokens] + params["positions"][: tokens.shape[1]]
    for weights in params["layers"]:
        x = x + attention(rms_norm(x, weights["norm1"]), weights)
        x = x + nn.gelu(rms_norm(x, weights["norm2"]) @ weights["up"]) @ weights["down"]
    return rms_norm(x, params["norm"]) @ params["embed"].T


def loss(params, tokens):
    logits = predict(params, tokens[:, :-1])
    target_logits = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(nn.logsumexp(logits, axis=-1) - target_logits)


@sw.jit
def train_step(params, means, squares, count, tokens):
    """Do one step of Adam."""
    value, grads = sw.value_and_grad(loss)(params, tokens)
    means = sw.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
    squares = sw.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
    count = count + 1
    rate = RATE * jnp.sqrt(1 - SQUARE_DECAY**count) / (1 - DECAY**count)
    params = sw.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + EPSILON), params, means, squares)
    return params, means, squares, count, value


def initial_params(seed=0):
    rng = np.random.default_rng(seed)

    def normal(rows, columns):
        return (rng.normal(size=(rows, columns)) / np.sqrt(WIDTH)).astype(np.float32)

    def layer():
        squares = {name: normal(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        ones = {name: np.ones(WIDTH, np.float32) for name in ("norm1", "norm2")}
        return {**squares, "up": normal(WIDTH, HIDDEN), "down": normal(HIDDEN, WIDTH) / 2, **ones}

    return {
        "embed": normal(len(ALPHABET), WIDTH),
        "positions": normal(LENGTH, WIDTH),
        "norm": np.ones(WIDTH, np.float32),
        "layers": [layer() for _ in range(LAYERS)],
    }


def initial_state(params):
    """Return the parameters, the means and squares of Adam, and the number of steps."""
    zeros = sw.tree.map(np.zeros_like, params)
    return params, zeros, zeros, np.float32(0)


def shard(mesh, state):
    """Shard the training state over the mesh, means and squares like their parameters."""

    def put_sharded(tree):
        return sw.tree.map(lambda value, spec: sw.device_put(value, NamedSharding(mesh, spec)), tree, LAYOUTS)

    params, means, squares, count = state
    return (
        put_sharded(params),
        put_sharded(means),
        put_sharded(squares),
        sw.device_put(count, NamedSharding(mesh, REPLICATED)),
    )


def batches(steps, seed=1):
    """Yield batches of random sequences of the text, each with its next character."""
    rng = np.random.default_rng(seed)
    tokens = np.array([ALPHABET.index(character) for character in TEXT], np.int32)
    for _ in range(steps):
        starts = rng.integers(0, len(tokens) - LENGTH, (BATCH, 1))
        yield tokens[starts + np.arange(LENGTH + 1)]


def train(state, steps, sharding=None, show=lambda loss: None):
    """Train for some steps, with batches of this sharding; return the state and the losses."""
    losses = []
    for tokens in batches(steps):
        *state, value = train_step(*state, tokens if sharding is None else sw.device_put(tokens, sharding))
        losses.append(float(value))
        show(losses[-1])
    return state, losses


def generate(params, start, count, seed=2):
    """Return `start` followed by sampled characters."""
    rng = np.random.default_rng(seed)
    probabilities_of = sw.jit(lambda params, tokens: nn.softmax(predict(params, tokens) / 0.5))
    text = start
    for _ in range(count):
        context = text[-LENGTH:]
        tokens = np.array([[ALPHABET.index(character) for character in context.ljust(LENGTH)]], np.int32)
        probabilities = np.asarray(probabilities_of(params, tokens), np.float64)[0, len(context) - 1]
        text += ALPHABET[rng.choice(len(ALPHABET), p=probabilities / probabilities.sum())]
    return text


def summary(plan):
    """Return a table of the collectives of a plan by kind and axes, the most expensive first."""
    table = Table(
        title=f"{plan.name} on {plan.mesh}: {plan.wire_bytes / 1e3:.0f} kB sent per device", title_justify="left"
    )
    for column in ("collective", "axes", "count", "sent", "reason for the first"):
        table.add_column(column, justify="right" if column in ("count", "sent") else "left")
    groups = {}
    for row in plan.collectives:
        groups.setdefault((row.kind, row.axes), []).append(row)
    for (kind, axes), rows in sorted(groups.items(), key=lambda group: -sum(row.sent for row in group[1])):
        sent = f"{sum(row.sent for row in rows) / 1e3:.1f} kB"
        table.add_row(kind, ", ".join(axes), str(len(rows)), sent, rows[0].reason)
    return table


def plot(losses, expected, file):
    """Plot the loss curves."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats per character)", title="a transformer on a 4×2 mesh")
    axes.plot(expected, linewidth=4, color="lightgrey", label="1 device")
    axes.plot(losses, linewidth=1.2, color="tab:blue", label="8 devices")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)


def main(steps=STEPS, folder=Path("build/demo")):
    console, start_time = Console(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    rows = NamedSharding(mesh, BATCHES)
    state = initial_state(initial_params())
    sharded = shard(mesh, state)
    tokens = sw.device_put(next(batches(1)), rows)

    console.rule(f"mesh {mesh.abstract}, and shardings of some arrays")
    layer = sharded[0]["layers"][0]
    for name, array in (
        ("tokens", tokens),
        ("embed", sharded[0]["embed"]),
        ("up", layer["up"]),
        ("down", layer["down"]),
    ):
        console.print(f"{name}: {array.dtype}{list(array.shape)}, {array.sharding.spec}")
        sw.debug.visualize_array_sharding(array, console=console)

    console.rule("the plan of a training step")
    with redirect_stdout(StringIO()):  # the page has all of it
        plan = sw.explain(train_step, advise=False)(*sharded, tokens)
    console.print(summary(plan.plan))
    console.print(f"memory: at most {plan.plan.peak_bytes / 1e6:.1f} MB per device")
    page = plan.write_html(folder / "plan.html")

    console.rule(f"training on {mesh.size} devices, then on one")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def show_progress(name):
            task = progress.add_task(name, total=steps)
            return lambda loss: progress.update(task, advance=1, description=f"{name} loss {loss:.3f}")

        many, losses = train(sharded, steps, rows, show_progress("8 devices"))
        one, expected = train(state, steps, None, show_progress("1 device "))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    picture = folder / "loss.png"
    plot(losses, expected, picture)

    console.rule("a sample of the trained model")
    console.print(generate(one[0], "The keeper of the ", 160), markup=False, highlight=False)
    console.rule()
    difference = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    console.print(
        f"loss {losses[0]:.3f} → {losses[-1]:.3f}; every loss equals that of the one-device run "
        f"(largest difference: {difference:.1e}); {time.perf_counter() - start_time:.0f} s"
    )
    console.print(f"plan: {page}; loss curves: {picture}")
    return many, losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small transformer on 8 virtual devices, and on one.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="the folder for the plan and the plot")
    options = parser.parse_args()
    main(options.steps, options.folder)
