"""Train a small transformer with `local_updates` and synchronously, and compare losses and bytes that are sent.

    python -m benchmarks.local_updates --steps 3000 --seeds 2

Both train on the characters of `examples/text.txt`, of which the last tenth is held out, from the same parameters, with
the same batches, the same AdamW and as many steps. Every virtual CPU device is a group, so that the bytes are those of
the plans, without any in groups.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.fp8_convergence import Model, Task, init, loss, text_task, windows
from shardwise import P, strategies

DECAY, SQUARE_DECAY, EPSILON, WEIGHT_DECAY, WARMUP = 0.9, 0.98, 1e-8, 0.1, 100
EVALUATED = 256  # windows of the held-out text
METHODS = ("synchronous", "local")


def adam(model: Model, rate: float, steps: int, state: Any, params: Any, tokens: Any) -> tuple[Any, Any, Any]:
    """Return the parameters and the state after a step of AdamW, and the loss."""
    means, squares, number = state
    value, gradients = jax.value_and_grad(partial(loss, model))(params, tokens)
    count = number + 1.0
    means = jax.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, gradients)
    squares = jax.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, gradients)
    progress = jnp.clip((number - WARMUP) / max(1, steps - WARMUP), 0, 1)
    now = rate * jnp.minimum(count / WARMUP, 0.05 + 0.475 * (1 + jnp.cos(np.pi * progress)))
    corrected = now / (1 - DECAY**count)

    def descend(p: Any, m: Any, s: Any) -> Any:
        decayed = p * (1 - now * WEIGHT_DECAY) if p.ndim > 1 else p
        return decayed - corrected * m / (jnp.sqrt(s / (1 - SQUARE_DECAY**count)) + EPSILON)

    return jax.tree.map(descend, params, means, squares), (means, squares, count), value


def train(
    options: argparse.Namespace, model: Model, task: Task, method: str, seed: int
) -> tuple[list[float], float, float]:
    """Return the held-out losses after each round, the mean training loss of the last one, and bytes per step."""
    mesh = jax.make_mesh((options.groups,), ("group",))
    rows = jax.NamedSharding(mesh, P(None, "group"))
    data, held_out = map(jnp.asarray, (task.training, task.held_out))
    params = init(model, task.symbols, jax.random.key(seed))
    zeros = jax.tree.map(jnp.zeros_like, params)
    state: Any = (zeros, zeros, jnp.float32(0))

    def step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        return adam(model, options.rate, options.steps, state, params, tokens)

    def synchronous(state: Any, batches: Any) -> tuple[Any, Any]:
        def body(state: Any, tokens: Any) -> tuple[Any, Any]:
            params, inner, value = step(state[0], state[1], tokens)
            return (params, inner), value

        return jax.lax.scan(body, state, batches)

    outer = strategies.OuterMomentum(options.outer_rate, options.outer_momentum)
    local = strategies.local_updates(step, mesh, "group", outer=outer)
    run: Callable[..., Any]
    if method == "local":
        state, run = jax.jit(local.create)(params, state), jax.jit(local.round, donate_argnums=0)
    else:
        replicated = jax.NamedSharding(mesh, P())
        state, run = jax.device_put((params, state), replicated), jax.jit(synchronous, donate_argnums=0)
    evaluate = jax.jit(partial(loss, model))
    tokens = windows(held_out, EVALUATED, model.length + 1, jax.random.key(1))
    losses, key, sent, mean = [], jax.random.key(seed + 1000), 0.0, 0.0
    for number in range(options.steps // options.every):
        keys = jax.random.split(jax.random.fold_in(key, number), options.every)
        draw = partial(windows, data, model.batch, model.length + 1)
        batches = jax.device_put(jax.vmap(draw)(keys), rows)
        if not sent:
            sent = run.lower(state, batches).plan.wire_bytes / options.every
        state, values = run(state, batches)
        current = state.outer if method == "local" else state[0]
        losses.append(float(evaluate(jax.device_put(current, jax.devices()[0]), tokens)))
        mean = float(values.mean())
    return losses, mean, sent


def table(results: dict[str, list[tuple[list[float], float, float]]]) -> Iterator[str]:
    """Yield the losses and bytes of both methods, and their ratios."""
    yield f"{'':12} {'least held-out losses':>24} {'last training losses':>24} {'bytes per step':>16}"
    means = []
    for method in METHODS:
        runs = results[method]
        least, last = [min(losses) for losses, _, _ in runs], [mean for _, mean, _ in runs]
        means.append((np.mean(least), np.mean(last), runs[0][2]))
        texts = (" ".join(f"{x:.4f}" for x in losses) for losses in (least, last))
        yield f"{method:12} " + " ".join(f"{text:>24}" for text in texts) + f" {runs[0][2]:16,.0f}"
    held_out, training, sent = (local / synchronous for synchronous, local in zip(*means, strict=True))
    yield (
        f"local against synchronous: held-out loss {100 * (held_out - 1):+.2f}%, training loss "
        f"{100 * (training - 1):+.2f}%, bytes {sent:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=100, help="steps between exchanges")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step of all groups together")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--outer-rate", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    options = parser.parse_args()
    model, task = Model(options.width, 2, 2, options.length, options.batch), text_task()
    results: dict[str, list[tuple[list[float], float, float]]] = {method: [] for method in METHODS}
    for seed in range(options.seeds):
        for method in METHODS:
            losses, mean, sent = train(options, model, task, method, seed)
            results[method].append((losses, mean, sent))
            curve = " ".join(f"{x:.3f}" for x in losses[:: max(1, len(losses) // 10)])
            print(f"{method} seed {seed}: held out {curve}; {sent:,.0f} bytes per step", flush=True)
    print("\n".join(table(results)))


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    main()
