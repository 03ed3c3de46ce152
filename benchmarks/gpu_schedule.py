"""When collectives run: training steps compiled for GPUs that are not present, Shardwise's modules beside JAX's.

Both sides' compiled, scheduled HLO goes through the same reader (`explain/hlo_schedule.py`). A collective is exposed
while the device waits for it. Needs JAX and its CUDA plugin; no GPU, if a file describes one in XLA's text format.

    python -m benchmarks.gpu_schedule --topology 1x1x8 --target-config h200.txtpb

"1x1x8" is one host of eight GPUs, and "4x1x8" four hosts. "1x4x8" would be four hosts that NVLink connects: XLA has no
times of collectives for these, and hides few of them. Where the NVIDIA libraries are not installed, JAX's plugin needs
the environment variable JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1. `--processes` compiles several steps at a time, and `--json`
keeps the figures in a file, with which a later run continues: JAX's modules do not depend on this package, and need not
be compiled again.

    python -m benchmarks.gpu_schedule --topology 1x1x8 4x1x8 --processes 16 --timeout 120 --json rows.jsonl

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
import json
import math
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import shardwise as sw
from benchmarks.compiled_steps import LIBRARIES, Job, compile_all, figures, step_names
from benchmarks.gpu_steps import abstract_mesh, jitted_step
from shardwise.base.caches import clear_all
from shardwise.compiler.plan.hardware import chip
from shardwise.execute.plan_report import request_report
from shardwise.explain.plan import prepare

NOTHING = 1e-6  # shorter waits count as this many seconds, so that a ratio exists
ROUNDS = 3  # of planning
SHARE_BAR = 0.2  # the CPU time of the schedule, relative to the other stages of planning


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_schedule")
    parser.add_argument(
        "--topology", nargs="+", default=["1x1x8"], help="groups of hosts that NVLink connects × hosts × GPUs"
    )
    parser.add_argument("--target-config", type=Path, help="the GPU, in XLA's text format; default: this machine's")
    parser.add_argument("--hardware", default="h200", help="the chip that prices kernels and links")
    parser.add_argument("--only", default="", help="the steps whose name contains this")
    parser.add_argument("--exclude", default="", help="not the steps whose name contains this")
    parser.add_argument("--keep", type=Path, help="a folder for the compiled modules")
    parser.add_argument("--side", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="the sides to compile")
    parser.add_argument("--processes", type=int, default=1, help="how many steps are compiled at a time")
    parser.add_argument("--timeout", type=float, default=600.0, help="the most seconds of one compilation")
    parser.add_argument("--deadline", type=float, default=86400.0, help="the seconds after which none continues")
    parser.add_argument("--json", type=Path, help="a file of figures: steps that it has are not compiled again")
    parser.add_argument("--one", choices=LIBRARIES, help="compile the step named by --only, and print its figures")
    parser.add_argument("--simulate", type=int, nargs="+", help="numbers of devices to simulate instead of compiling")
    parser.add_argument("--planning", type=int, nargs="+", help="numbers of devices for which planning is timed")
    arguments = parser.parse_args()
    if arguments.planning:
        lines = planning_table(arguments)
    elif arguments.simulate:
        lines = simulated_table(arguments)
    elif arguments.one:
        lines = iter([json.dumps(figures(arguments))])
    else:
        lines = table(arguments)
    for line in lines:
        print(line, flush=True)


def table(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the table of both sides, and the geometric mean of their ratios for each topology."""
    names = [name for name, *_ in step_names(arguments.only) if not (arguments.exclude and arguments.exclude in name)]
    topologies, sides = arguments.topology, arguments.side
    jobs = [Job(topology, name, side) for topology in topologies for name in names for side in sides]
    rows = compile_all(jobs, arguments)
    yield "| topology | step | | launches | on links | exposed | of weights' | sent | kernels | temporaries |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for topology in topologies:
        ratios = {}
        for name in names:
            exposed = []
            for side in LIBRARIES:
                row = rows.get(Job(topology, name, side), {"error": "not compiled"})
                yield f"| {topology} | {name} | {side} | " + " | ".join(cells(row)) + " |"
                exposed += [max(row["exposed"], NOTHING)] if "error" not in row else []
            if len(exposed) == len(LIBRARIES):
                ratios[name] = exposed[0] / exposed[1]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = max(ratios, key=ratios.__getitem__)
            yield f"\n{topology}: exposed, ours against JAX's, geometric mean of {len(ratios)}: {mean:.2f}"
            yield f"largest ratio: {ratios[worst]:.2f} ({worst})\n"


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row of figures."""
    if "error" in row:
        return [row["error"], *[""] * 6]
    launches = ", ".join(f"{count} {kind}" for kind, count in sorted(row["launches"].items()))
    links, exposed, kernels = (f"{1e3 * row[key]:.2f} ms" for key in ("links", "exposed", "kernels"))
    weights, exposed_weights = row["weights"]
    share = f"{exposed_weights / weights:.0%}" if weights else ""
    sizes = f"{row['sent'] / 1e6:,.0f} MB", kernels, f"{row['temporaries'] / 2**30:.2f} GiB"
    return [launches, links, exposed, share, *sizes]


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


if __name__ == "__main__":
    main()
