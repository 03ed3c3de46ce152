"""Predicted memory of training steps, beside what XLA assigns and what the allocator of the device counts.

    python -m benchmarks.memory_predictions [--only NAME] [--json FILE]

Nothing is fitted. Each step is compiled and run in a process of its own, because the counters of an allocator have no
reset. On CPU there are no counters.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks import models, predictions
from shardwise.compiler.plan.hardware import built_in_chip_of
from shardwise.models import Decoder, train_state, train_step

ROWS = 16  # how many times larger than in `benchmarks.models` the batches are
DECODER = Decoder(layers=12, width=1024, heads=16, key_heads=4, head_width=64, hidden=2816, vocabulary=32000)
Step = tuple[str, Callable[..., Any], tuple[Any, ...]]  # the name, the jitted step, and the types of its arguments


def steps() -> Iterator[Step]:
    """Yield training steps of many kinds of models."""
    for model in models.MODELS.values():
        types = jax.eval_shape(lambda model=model: (model.state(), model.examples()))
        state, batch = types
        batch = {name: leaf.update(shape=(ROWS * leaf.shape[0], *leaf.shape[1:])) for name, leaf in batch.items()}
        yield f"{model.name} × {ROWS}", jax.jit(models.training_step(model), donate_argnums=0), (state, batch)
    for name, step, arguments in predictions.models():
        yield name, step, jax.eval_shape(lambda arguments=arguments: arguments(predictions.zeros))
    for remat in (None, jax.checkpoint):
        for microbatches in (1, 4):
            shape = (8, 1025) if microbatches == 1 else (microbatches, 2, 1025)
            step = jax.jit(train_step(DECODER, microbatches, remat), donate_argnums=0)
            kinds = ["recomputed"] * (remat is not None) + [f"{microbatches} microbatches"] * (microbatches > 1)
            types = (train_state(DECODER), jax.ShapeDtypeStruct(shape, jnp.int32))
            yield ", ".join(["decoder", *kinds]), step, types


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_predictions")
    parser.add_argument("--only", help="measure the step of this name in this process, and print its figures as JSON")
    parser.add_argument("--processes", type=int, default=1, help="how many steps are measured at the same time")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parsed = parser.parse_args()
    if parsed.only:
        print(json.dumps(next(figures(step) for step in steps() if step[0] == parsed.only)))
        return
    print("| step | predicted | XLA | error | allocator's peak |\n|---|---|---|---|---|")
    rows = []
    with ThreadPoolExecutor(parsed.processes) as pool:
        for row in pool.map(measure, [name for name, *_ in steps()]):
            rows.append(row)
            predicted, assigned, peak = (f"{row[key] / 2**20:.1f} MiB" for key in ("predicted", "assigned", "peak"))
            print(f"| {row['name']} | {predicted} | {assigned} | {100 * error(row):+.1f}% | {peak} |", flush=True)
    errors = [100 * error(row) for row in rows]
    print(f"\nmedian error {median(map(abs, errors)):.1f}%, lowest {min(errors):+.1f}%")
    if parsed.json:
        parsed.json.write_text(json.dumps(rows))


def measure(name: str) -> dict[str, Any]:
    """Return the figures of a step, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_predictions", "--only", name]
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return row


def error(row: dict[str, Any]) -> float:
    return float(row["predicted"] / row["assigned"] - 1)


def figures(step: Step) -> dict[str, Any]:
    """Return the bytes that are predicted, assigned by XLA, and counted by the allocator."""
    name, function, types = step
    device = jax.devices()[0]
    chip = built_in_chip_of(device.device_kind)
    assert chip is not None
    assigned = function.lower(*types).compile().memory_analysis()
    total = (
        assigned.argument_size_in_bytes
        + assigned.output_size_in_bytes
        - assigned.alias_size_in_bytes
        + assigned.temp_size_in_bytes
    )
    counted = device.memory_stats() or {}
    if counted:
        args = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), types)
        jax.block_until_ready(function(*args))
        counted = device.memory_stats()
    return {
        "name": name,
        "predicted": jax.simulate(function, hardware=chip)(*types).peak_bytes,
        "assigned": int(total),
        "temporaries": int(assigned.temp_size_in_bytes),
        "peak": int(counted.get("peak_bytes_in_use", 0)),
    }


if __name__ == "__main__":
    main()
