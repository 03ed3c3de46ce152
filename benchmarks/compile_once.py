"""The first steps of a program that takes a minute to compile: one process alone, and several that compile it once.

python -m benchmarks.compile_once [--processes 4] [--rounds 2] [--seconds 75] [--layers N] [--lengths 16 24] [--cores N]

Every run has new processes and no compilation cache. Runs of one process with four devices, and of several processes
with the same devices together, take turns. There is a step for each length of the sequences, as in training with
buckets. With `--cores`, every process has N cores of its own, as on a host of its own; otherwise all of them share the
cores of this machine. The model has so many layers, in a scan that is unrolled, that one process compiles for about
SECONDS. The exit code is 0 if one process has compiled each step, if the losses agree, and if the time from the end of
the imports to the end of the last first step is at most `BAR` of the time of one process alone.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.measure import ROOT

WORKER = "benchmarks/compile_once_worker.py"
BAR = 1.15
LEAST_SECONDS = 60.0  # of the compilations
FIRST_LAYERS = 8
CACHE_VARIABLES = ("SHARDWISE_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")


def run(processes: int, layers: int, lengths: Sequence[int], cores: int | None) -> list[dict[str, Any]]:
    """Run the first steps in new processes, each on so many cores of its own. Return what each of them prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name not in CACHE_VARIABLES}
    started = [
        subprocess.Popen(
            [sys.executable, WORKER, *map(str, (rank, processes, port, layers, *lengths))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT), "SHARDWISE_PLATFORMS": "cpu"},
        )
        for rank in range(processes)
    ]
    if cores is not None:
        available = sorted(os.sched_getaffinity(0))
        for rank, process in enumerate(started):
            os.sched_setaffinity(process.pid, available[rank * cores : (rank + 1) * cores])
    answers = [json.loads(process.communicate()[0] or "null") for process in started]
    if None in answers:
        raise SystemExit(f"a process has failed: exit codes {[process.returncode for process in started]}")
    return answers


def layers_for(seconds: float, lengths: Sequence[int], cores: int | None) -> int:
    """Return the layers of a model whose steps take at least about these seconds to compile.

    Layers are doubled until the compilation takes a quarter of the time. Compilation times grow no slower than layers.
    """
    layers = FIRST_LAYERS
    time: float = run(1, layers, lengths, cores)[0]["executables"]
    while time < seconds / 4:
        layers *= 2
        time = run(1, layers, lengths, cores)[0]["executables"]
    return math.ceil(layers * seconds / time)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_once", description="Time the first step.")
    parser.add_argument("--processes", type=int, default=4, choices=(2, 4))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=75.0, help="the time of the compilation in one process")
    parser.add_argument("--layers", type=int, help="the layers of the model, instead of so many that it takes SECONDS")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16], help="of the sequences; a step for each")
    parser.add_argument("--cores", type=int, help="of each process alone, instead of all cores for all processes")
    options = parser.parse_args(arguments)
    if options.cores and options.cores * options.processes > len(os.sched_getaffinity(0)):
        parser.error(f"--cores {options.cores}: {options.processes} processes need as many cores of this machine each")
    layers = options.layers or layers_for(options.seconds, options.lengths, options.cores)
    print(f"{layers} layers, sequences of {options.lengths}", flush=True)
    times: dict[int, list[float]] = {1: [], options.processes: []}
    problems = []
    losses: list[float] = []
    for _ in range(options.rounds):
        for processes, seconds in times.items():
            answers = run(processes, layers, options.lengths, options.cores)
            seconds.append(max(answer["seconds"] for answer in answers))
            losses += [answer["loss"] for answer in answers]
            columns = {name: [answer[name] for answer in answers] for name in answers[0]}
            executables = max(columns["executables"])
            print(
                f"{processes} processes: first steps after {seconds[-1]:.1f} s, {executables:.1f} s for executables; "
                f"compiled modules {columns['compiled']}, of the steps {columns['compiled steps']}",
                flush=True,
            )
            if processes == 1 and executables < LEAST_SECONDS:
                problems.append(f"one process compiles for {executables:.1f} s, less than {LEAST_SECONDS:.0f}")
            counts = [sum(each) for each in zip(*columns["compiled steps"], strict=True)]
            if any(count != 1 for count in counts):
                problems.append(f"the steps were compiled {counts} times")
    ratio = median(times[options.processes]) / median(times[1])
    print(f"ratio {ratio:.3f} (bar {BAR})")
    if ratio > BAR:
        problems.append(f"the ratio {ratio:.3f} is above {BAR}")
    if not all(math.isclose(loss, losses[0], rel_tol=1e-5) for loss in losses):
        problems.append(f"the losses differ: {losses}")
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
