"""When collectives run: training steps compiled for GPUs that are not present, Shardwise's modules beside JAX's.

Both sides' compiled, scheduled HLO goes through the same reader (`explain/hlo_schedule.py`). A collective is exposed
while the device waits for it. Needs JAX and its CUDA plugin; no GPU, if a file describes one in XLA's text format.

    python -m benchmarks.gpu_schedule --topology 1x1x8 --target-config h200.txtpb

"1x1x8" is one host of eight GPUs, and "4x1x8" four hosts. "1x4x8" would be four hosts that NVLink connects: XLA has no
times of collectives for these, and hides few of them. Where the NVIDIA libraries are not installed, JAX's plugin needs
the environment variable JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1.

For numbers of devices that are too large to compile for, the simulator predicts the time and the exposed communication
of the same steps, with and without the schedule. This needs neither JAX nor a plugin.

    python -m benchmarks.gpu_schedule --simulate 64 512 4096

The CPU time of the stages of planning, and the share of the schedule. The results of the schedule are in the same
table: two versions can be compared.

    python -m benchmarks.gpu_schedule --planning 8 32 256
"""

import argparse
import gc
import hashlib
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import shardwise as sw
from benchmarks.gpu_steps import KINDS, abstract_mesh, jitted_step, lower_step
from shardwise.base.caches import clear_all
from shardwise.compiler.plan.hardware import chip
from shardwise.execute.plan_report import request_report
from shardwise.explain.hlo_schedule import read_schedule
from shardwise.explain.plan import prepare

LIBRARIES = {"ours": "shardwise", "JAX": "jax"}
NOTHING = 1e-6  # shorter waits count as this many seconds, so that a ratio exists
ROUNDS = 3  # of planning
SHARE_BAR = 0.2  # the CPU time of the schedule, relative to the other stages of planning


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_schedule")
    parser.add_argument("--topology", default="1x1x8", help="groups of hosts that NVLink connects × hosts × GPUs")
    parser.add_argument("--target-config", type=Path, help="the GPU, in XLA's text format; default: this machine's")
    parser.add_argument("--hardware", default="h200", help="the chip that prices kernels and links")
    parser.add_argument("--only", default="", help="the steps whose name contains this")
    parser.add_argument("--keep", type=Path, help="a folder for the compiled modules")
    parser.add_argument("--side", choices=LIBRARIES, help="print the figures of one side, as JSON")
    parser.add_argument("--simulate", type=int, nargs="+", help="numbers of devices to simulate instead of compiling")
    parser.add_argument("--planning", type=int, nargs="+", help="numbers of devices for which planning is timed")
    arguments = parser.parse_args()
    if arguments.planning:
        lines = planning_table(arguments)
    elif arguments.simulate:
        lines = simulated_table(arguments)
    else:
        lines = table(sys.argv[1:]) if arguments.side is None else map(json.dumps, figures(arguments))
    for line in lines:
        print(line, flush=True)


def table(arguments: list[str]) -> Iterator[str]:
    """Yield the table of both sides. Each runs in a process of its own: a process loads a plugin once."""
    sides = []
    for side in LIBRARIES:
        command = [sys.executable, "-m", "benchmarks.gpu_schedule", "--side", side, *arguments]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        sides.append([json.loads(line) for line in output.splitlines()])
    yield "| step | | launches | on links | exposed | kernels | temporaries |"
    yield "|---|---|---|---|---|---|---|"
    ratios = []
    for ours, theirs in zip(*sides, strict=True):
        for side, row in zip(LIBRARIES, (ours, theirs), strict=True):
            launches = ", ".join(f"{count} {kind}" for kind, count in sorted(row["launches"].items()))
            times = (f"{1e3 * row[key]:.2f} ms" for key in ("links", "exposed", "kernels"))
            yield " | ".join([f"| {row['step']}", side, launches, *times, f"{row['temporaries'] / 2**30:.2f} GiB |"])
        ratios.append(max(ours["exposed"], NOTHING) / max(theirs["exposed"], NOTHING))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    yield f"\nexposed, ours against JAX's, geometric mean of {len(ratios)}: {mean:.2f}"


def simulated_table(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the table of simulated steps: milliseconds of a step, and those in which communication is exposed."""
    yield "| step | devices | step without | step with | ratio | exposed without | exposed with |"
    yield "|---|---|---|---|---|---|---|"
    ratios = []
    for name, kind, scanned in step_names(arguments.only):
        for devices in arguments.simulate:
            plans = [simulated_plan(kind, scanned, devices, arguments.hardware, value) for value in (False, True)]
            ratios.append(plans[1].seconds / plans[0].seconds)
            steps, exposed = ([f"{1e3 * figure:.1f}" for figure in row] for row in zip(*map(times, plans), strict=True))
            yield " | ".join([f"| {name}", f"{devices:,}", *steps, f"{ratios[-1]:.2f}", *exposed]) + " |"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    yield f"\nstep with the schedule against without, geometric mean: {mean:.2f}, most {max(ratios):.2f}"


def simulated_plan(kind: str, scanned: bool, devices: int, hardware: str, is_scheduled: bool) -> sw.Plan:
    """Return the plan of a step on a number of devices, with or without the schedule of communication."""
    with sw.config.override("schedule_communication", is_scheduled):
        step, arguments = jitted_step(sw, abstract_mesh(sw, devices, kind), kind, scanned)
        return sw.simulate(step, hardware=hardware)(*arguments).plan


def times(plan: sw.Plan) -> tuple[float, float]:
    """Return the seconds of a step, and those in which communication is exposed."""
    return plan.seconds, plan.exposed_seconds


def planning_table(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the table of the CPU time of planning: of the schedule, and of all other stages before lowering."""
    yield "| step | devices | equations | schedule | other stages | ratio | predicted step | exposed | sent | digest |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    ratios = {}
    for name, kind, scanned in step_names(arguments.only):
        for devices in arguments.planning:
            rounds = [planning_seconds(kind, scanned, devices, arguments.hardware) for _ in range(ROUNDS)]
            schedule, others = (min(times) for times in zip(*rounds, strict=True))
            ratios[f"{name}, {devices}"] = schedule / others
            times = f"{1e3 * schedule:.0f} ms", f"{1e3 * others:.0f} ms", f"{schedule / others:.3f}"
            count, *results = schedule_results(kind, scanned, devices, arguments.hardware)
            yield " | ".join([f"| {name}", f"{devices}", count, *times, *results]) + " |"
    worst = max(ratios, key=ratios.__getitem__)
    above = sum(ratio > SHARE_BAR for ratio in ratios.values())
    yield f"\nratio, most: {ratios[worst]:.3f} ({worst}); {above} of {len(ratios)} above {SHARE_BAR:.2f}"


class StageClock:
    """Records the CPU time of each pass; a StageDump for `prepare`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._before = process_time()

    def add(self, name: str, _: Any) -> None:
        now = process_time()
        self.seconds[name] = now - self._before
        self._before = now


def planning_seconds(kind: str, scanned: bool, devices: int, hardware: str) -> tuple[float, float]:
    """Return the CPU seconds of the schedule, and of the other stages from tracing to the program of one device."""
    step, arguments = jitted_step(sw, abstract_mesh(sw, devices, kind), kind, scanned)
    clear_all()
    gc.collect()
    clock: Any = StageClock()
    prepare(step, arguments, {}, chip(hardware), clock)
    schedule = clock.seconds.pop("schedule")
    del clock.seconds["lower"]
    return schedule, sum(clock.seconds.values())


def schedule_results(kind: str, scanned: bool, devices: int, hardware: str) -> tuple[str, ...]:
    """Return what the schedule decided, as text.

    These are the equations before it, the predicted time of the step, the exposed time, the bytes that each device
    sends, and a digest of the program.
    """
    step, arguments = jitted_step(sw, abstract_mesh(sw, devices, kind), kind, scanned)
    prepared = prepare(step, arguments, {}, chip(hardware))
    stages, plan = prepared.stages, request_report(prepared.request, prepared.stages, chip(hardware))
    return (
        f"{sum(1 for _ in stages.partitioned.program.walk()):,}",
        *(f"{1e3 * seconds:.3f} ms" for seconds in times(plan)),
        f"{stages.local.sent:.0f}",
        hashlib.sha256(str(stages.local).encode()).hexdigest()[:12],
    )


def step_names(part: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the steps whose name contains `part`: name, key of KINDS, whether the layers are a scan."""
    for kind in KINDS:
        for scanned in (True, False):
            name = f"{kind}, {'scanned' if scanned else 'unrolled'}"
            if part in name:
                yield name, kind, scanned


def figures(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compile the steps of one side, and yield their figures."""
    library = importlib.import_module(LIBRARIES[arguments.side])
    topologies = importlib.import_module(f"{library.__name__}.experimental.topologies")
    options = {"topology": arguments.topology}
    if arguments.target_config:
        options["target_config"] = arguments.target_config.read_text()
    devices = topologies.get_topology_desc("", "cuda", **options).devices
    for name, kind, scanned in step_names(arguments.only):
        # XLA's autotuner needs a GPU.
        compiled = lower_step(library, devices, kind, scanned).compile(compiler_options={"xla_gpu_autotune_level": 0})
        schedule = read_schedule(compiled.as_text(), chip(arguments.hardware))
        if arguments.keep is not None:
            (arguments.keep / f"{name}, {arguments.side}.hlo").write_text(compiled.as_text())
        yield {
            "step": name,
            "launches": schedule.counts(),
            "links": schedule.communication_seconds,
            "exposed": schedule.exposed_seconds,
            "kernels": schedule.compute_seconds,
            "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        }


if __name__ == "__main__":
    main()
