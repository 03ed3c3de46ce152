"""Predicted memory of training steps, beside what XLA assigns and what the allocator of the device counts.

    python -m benchmarks.memory_predictions [--only NAME] [--json FILE] [--target-config FILE] [--recorded FILE]

Nothing is fitted. The rules of the memory model were found with the models of `models.py` and `predictions.py` and with
decoders, and later with the steps of `memory_models.py` and the five `memory_held_out` modules, each of which had been
held out until its steps were predicted once. Each step is compiled and run in a process of its own, because the
counters of an allocator have no reset. On CPU there are no counters, and the steps that need cuDNN are omitted. Steps
on several devices are compiled for as many virtual devices of the CPU, and do not run.

With `--recorded`, nothing is compiled: predictions for an H200 are compared with the file that `--json` wrote there.
Rows of other devices, or of steps whose program has changed since, are listed and left out.

With `--target-config`, the steps are compiled for a GPU that is not present, which the file describes in XLA's text
format (`benchmarks/gpu_schedule.py`). Nothing runs, and XLA's autotuner is off: it needs a GPU. XLA then assigns other
temporaries than on the GPU itself, because it selects other kernels, and cannot compile the steps that need cuDNN.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks import (
    memory_held_out,
    memory_held_out_2,
    memory_held_out_3,
    memory_held_out_4,
    memory_held_out_5,
    memory_models,
    models,
    predictions,
)
from shardwise.compiler.plan.hardware import built_in_chip_of
from shardwise.models import Decoder, train_state, train_step

ROWS = 16  # how many times larger than in `benchmarks.models` the batches are
DECODER = Decoder(layers=12, width=1024, heads=16, key_heads=4, head_width=64, hidden=2816, vocabulary=32000)
Step = tuple[str, Any, tuple[Any, ...]]  # the name, the jitted step, and the types of its arguments
DEVELOPED, LATER = "developed on", "developed on later"
HELD_OUT_SETS = {
    "held out": memory_held_out,
    "held out 2": memory_held_out_2,
    "held out 3": memory_held_out_3,
    "held out 4": memory_held_out_4,
    "held out 5": memory_held_out_5,
}
SPLITS = DEVELOPED, LATER, *HELD_OUT_SETS
SHARDED = {name: make for module in HELD_OUT_SETS.values() for name, make in module.SHARDED.items()}
MESHES = memory_held_out_3.MESHES | memory_held_out_4.MESHES | memory_held_out_5.MESHES
RECORDED_DEVICE = "NVIDIA H200"
MESH = {"data": 4, "model": 2}  # of the sharded steps that have no other in `MESHES`


def steps() -> Iterator[Step]:
    """Yield all steps, first those on which the rules were developed. The meshes of the last ones are abstract."""
    yield from developed_steps()
    for module in (memory_models, *HELD_OUT_SETS.values()):
        for name, make in module.STEPS.items():
            step, types = make()
            yield name, step, types
    for name, make_sharded in SHARDED.items():
        shape = mesh_shape(name)
        step, types = make_sharded(jax.sharding.AbstractMesh(tuple(shape.values()), tuple(shape)))
        yield name, step, types


def mesh_shape(name: str) -> dict[str, int]:
    """Return the sizes of the axes of a step's mesh."""
    return MESHES.get(name, MESH) if name in SHARDED else {"x": 1}


def split(name: str) -> str:
    """Return whether the rules were developed on a step, at first or later, or it is held out."""
    for held_out, module in HELD_OUT_SETS.items():
        if name in module.STEPS or name in module.SHARDED:
            return held_out
    return LATER if name in memory_models.STEPS else DEVELOPED


def developed_steps() -> Iterator[Step]:
    """Yield the steps on which the first rules were developed."""
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
    parser.add_argument(
        "--recorded", type=Path, help="compare with the figures of this file, of an H200; compile nothing"
    )
    parser.add_argument("--dump", type=Path, help="a folder for XLA's buffer assignments of the steps developed on")
    parser.add_argument("--split", choices=SPLITS, help="only these steps")
    parser.add_argument("--target-config", type=Path, help="compile for the GPU that this file describes; run nothing")
    parsed = parser.parse_args()
    if parsed.only:
        step = next(step for step in steps() if step[0] == parsed.only)
        print(json.dumps(figures(step, parsed.target_config)))
        return
    print("| step | predicted | XLA | error | allocator's peak |\n|---|---|---|---|---|")
    rows = []
    names = [name for name, *_ in steps() if parsed.split in (None, split(name))]
    failures = {}
    stale = {}
    for row in recorded(parsed.recorded, names) if parsed.recorded else measured(names, parsed):
        if "stale" in row:
            stale[row["name"]] = row["stale"]
            continue
        if "failure" in row:
            failures[row["name"]] = row["failure"]
            continue
        rows.append(row)
        predicted, assigned, peak = (f"{row[key] / 2**20:.1f} MiB" for key in ("predicted", "assigned", "peak"))
        print(f"| {row['name']} | {predicted} | {assigned} | {100 * error(row):+.1f}% | {peak} |", flush=True)
    print()
    for kind in SPLITS:
        errors = [100 * error(row) for row in rows if split(row["name"]) == kind]
        if errors:
            middle, least, most = median(map(abs, errors)), min(errors), max(errors)
            print(
                f"{kind:18} {len(errors)} steps: median error {middle:.1f}%, lowest {least:+.1f}%, highest {most:+.1f}%"
            )
    for name, reason in stale.items():
        print(f"left out: {name}: {reason}")
    if len(kinds := {row["device"] for row in rows}) > 1:  # a GPU that fails is replaced by the CPU, with a warning
        sys.exit(f"the steps ran on devices of several kinds: {', '.join(sorted(kinds))}")
    if parsed.json:
        parsed.json.write_text(json.dumps(rows))
    if failures:
        sys.exit("\n\n".join(f"{name} failed:\n{text[-2000:]}" for name, text in failures.items()))


def recorded(file: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of an H200 that a file has, with new predictions; or the reason why a row is not compared."""
    known = {row["name"]: row for row in json.loads(file.read_text())}
    for name, function, types in steps():
        if name not in names or name not in known:
            continue
        row, run = known[name], jax.simulate(function, hardware="h200")(*types)
        if row["device"] != RECORDED_DEVICE:
            yield {"name": name, "stale": f"recorded on {row['device']}"}
        elif row.get("program") != digest(run):
            yield {"name": name, "stale": "recorded with another program"}
        else:
            yield {**row, "predicted": run.peak_bytes}


def digest(run: Any) -> str:
    """Return a digest of the program of one device that a simulated step compiles, without its source lines."""
    equations = run._local.program.walk()
    text = "\n".join(f"{equation.op.name} {[*map(str, equation.inputs)]}" for equation in equations)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measured(names: Collection[str], parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of the steps that can be compiled here."""
    with ThreadPoolExecutor(parsed.processes) as pool:
        for row in pool.map(partial(measure, target=parsed.target_config, dump=parsed.dump), names):
            if row is not None:
                yield row


def measure(name: str, target: Path | None = None, dump: Path | None = None) -> dict[str, Any] | None:
    """Return the figures of a step, measured in a process of its own; None if its kernels cannot be compiled here.

    Args:
        name: the name of the step.
        target: a description of a GPU that is not present.
        dump: a folder for XLA's buffer assignment, unless the step is held out.
    """
    command = [sys.executable, "-m", "benchmarks.memory_predictions", "--only", name]
    if target is not None:
        command += ["--target-config", str(target)]
    flags = [os.environ.get("XLA_FLAGS", "")]
    if name in SHARDED:
        flags.append(f"--xla_force_host_platform_device_count={math.prod(mesh_shape(name).values())}")
    if dump is not None and split(name) not in HELD_OUT_SETS:
        flags += [f"--xla_dump_to={dump / name.replace(' ', '_')}", "--xla_dump_hlo_as_text"]
    # Processes that reserve most of a GPU's memory would leave none to others.
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if result.returncode:
        return {"name": name, "failure": result.stderr}
    row: dict[str, Any] | None = json.loads(result.stdout)
    return row


def error(row: dict[str, Any]) -> float:
    return float(row["predicted"] / row["assigned"] - 1)


def figures(step: Step, target: Path | None) -> dict[str, Any] | None:
    """Return the bytes that are predicted, assigned by XLA, and counted by the allocator; None without cuDNN."""
    name, function, types = step
    options: dict[str, Any] = {}
    shape = mesh_shape(name)
    count = math.prod(shape.values())
    if target is None:
        devices = jax.devices()[:count]
        placed = types
    else:
        description = {"topology": f"1x1x{count}", "target_config": target.read_text()}
        devices = jax.experimental.topologies.get_topology_desc("", "cuda", **description).devices
        options = {"xla_gpu_autotune_level": 0}
    if target is not None or count > 1:
        mesh = jax.sharding.Mesh(np.reshape(np.array(devices), tuple(shape.values())), tuple(shape))
        placed = jax.tree.map(lambda leaf: leaf.update(sharding=jax.NamedSharding(mesh, spec_of(leaf))), types)
    chip = built_in_chip_of(devices[0].device_kind)
    assert chip is not None
    try:
        assigned = function.lower(*placed).compile(compiler_options=options).memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
        if "cudnn" not in str(error).lower():
            raise
        return None
    total = (
        assigned.argument_size_in_bytes
        + assigned.output_size_in_bytes
        - assigned.alias_size_in_bytes
        + assigned.temp_size_in_bytes
    )
    counted = (devices[0].memory_stats() if target is None and count == 1 else None) or {}
    if counted:
        args = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), types)
        jax.block_until_ready(function(*args))
        counted = devices[0].memory_stats()
    run = jax.simulate(function, hardware=chip)(*types)
    return {
        "name": name,
        "device": devices[0].device_kind,
        "program": digest(run),
        "predicted": run.peak_bytes,
        "assigned": int(total),
        "temporaries": int(assigned.temp_size_in_bytes),
        "peak": int(counted.get("peak_bytes_in_use", 0)),
    }


def spec_of(leaf: jax.ShapeDtypeStruct) -> jax.P:
    """Return the spec of the type of an argument."""
    return leaf.sharding.spec if isinstance(leaf.sharding, jax.NamedSharding) else jax.P()


if __name__ == "__main__":
    main()
