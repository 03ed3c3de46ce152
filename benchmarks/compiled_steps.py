"""Compile training steps for GPUs that are not present, each in a process of its own, and read their schedules.

A step is a row of figures, or a row with an error: a compilation that takes too long is stopped. Rows are written to a
file as they come. A later run compiles only the steps that the file does not have, so a table can be made in parts.
"""

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, final

from benchmarks.gpu_steps import KINDS, lower_step
from shardwise.compiler.plan.hardware import chip
from shardwise.explain.hlo_schedule import HloSchedule, read_schedule

LIBRARIES = {"ours": "shardwise", "JAX": "jax"}
WEIGHT_KINDS = ("all-gather", "reduce-scatter")  # the collectives of sharded weights and their gradients


@final
@dataclass(frozen=True)
class Job:
    """One step to compile.

    Attributes:
        topology: the devices, such as "1x1x8".
        step: the name of the step.
        side: a key of LIBRARIES.
    """

    topology: str
    step: str
    side: str


def step_names(part: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the steps whose name contains `part`: name, key of KINDS, whether the layers are a scan."""
    for kind in KINDS:
        for scanned in (True, False):
            name = f"{kind}, {'scanned' if scanned else 'unrolled'}"
            if part in name:
                yield name, kind, scanned


def compile_all(jobs: Sequence[Job], arguments: Namespace) -> dict[Job, dict[str, Any]]:
    """Return the rows of jobs, as many at a time as `arguments.processes`.

    Args:
        jobs: the jobs, in the order in which they start.
        arguments: those of the command line.
    """
    rows = read_rows(arguments.json)
    missing = [job for job in jobs if job not in rows]
    deadline = monotonic() + arguments.deadline
    with ThreadPoolExecutor(arguments.processes) as pool:
        running = {pool.submit(_compile_in_process, job, arguments, deadline): job for job in missing}
        for number, done in enumerate(as_completed(running), 1):
            job, row = running[done], done.result()
            rows[job] = row
            if arguments.json is not None:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            result = row.get("error") or f"{1e3 * row['exposed']:.2f} ms exposed"
            print(f"{number} of {len(missing)}: {job.topology} {job.step}, {job.side}: {result}", file=sys.stderr)
    return rows


def read_rows(path: Path | None) -> dict[Job, dict[str, Any]]:
    """Return the rows of a file that are no errors, none if there is no file."""
    if path is None or not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {Job(row["topology"], row["step"], row["side"]): row for row in rows if "error" not in row}


def _compile_in_process(job: Job, arguments: Namespace, deadline: float) -> dict[str, Any]:
    """Return the row of a job. A process loads a plugin once, and can be stopped."""
    command = [sys.executable, "-m", "benchmarks.gpu_schedule", "--one", job.side, "--topology", job.topology]
    command += ["--only", job.step, "--hardware", arguments.hardware]
    for name in ("target_config", "keep"):
        if (value := getattr(arguments, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    row: dict[str, Any] = {"topology": job.topology, "step": job.step, "side": job.side}
    seconds = min(arguments.timeout, deadline - monotonic())
    if seconds <= 0:
        return {**row, "error": f"not started within {arguments.deadline:.0f} s"}
    try:
        output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds).stdout
    except subprocess.TimeoutExpired:
        return {**row, "error": f"stopped after {seconds:.0f} s"}
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        # After a failed check, XLA aborts with a stack trace.
        return {**row, "error": next((line for line in lines if "Check failed" in line), lines[-1])}
    return {**row, **json.loads(output.splitlines()[-1])}


def figures(arguments: Namespace) -> dict[str, Any]:
    """Compile the step named `arguments.only` with the library `arguments.one`, and return its figures."""
    library = importlib.import_module(LIBRARIES[arguments.one])
    topologies = importlib.import_module(f"{library.__name__}.experimental.topologies")
    options = {"topology": arguments.topology[0]}
    if arguments.target_config:
        options["target_config"] = arguments.target_config.read_text()
    devices = topologies.get_topology_desc("", "cuda", **options).devices
    kind, scanned = next((kind, scanned) for name, kind, scanned in step_names("") if name == arguments.only)
    start = monotonic()
    # XLA's autotuner needs a GPU.
    compiled = lower_step(library, devices, kind, scanned).compile(compiler_options={"xla_gpu_autotune_level": 0})
    text = compiled.as_text()
    if arguments.keep is not None:
        (arguments.keep / f"{arguments.topology[0]} {arguments.only}, {arguments.one}.hlo").write_text(text)
    schedule = read_schedule(text, chip(arguments.hardware))
    return {
        "launches": schedule.counts(),
        "links": schedule.communication_seconds,
        "exposed": schedule.exposed_seconds,
        "weights": weight_seconds(schedule),
        "sent": sum(launch.times * launch.collective.sent for launch in schedule.launches),
        "kernels": schedule.compute_seconds,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "compilation": monotonic() - start,
    }


def weight_seconds(schedule: HloSchedule) -> tuple[float, float]:
    """Return the time of gathers and reduce-scatters on the links, and how much of it is exposed."""
    launches = [launch for launch in schedule.launches if launch.collective.kind in WEIGHT_KINDS]
    return (
        sum(launch.times * launch.seconds for launch in launches),
        sum(launch.times * launch.exposed for launch in launches),
    )
