"""Run `training.py` under `shardwise launch --spares`, with faults, and read what its processes print."""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from shardwise import checkpoints
from shardwise.checkpoints.location import location_of
from shardwise.checkpoints.steps import list_steps, step_name

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/recovery/training.py"
TIME_LIMIT = 600  # seconds for a launch, which a test that passes never needs, also on a busy machine


@dataclass
class Outcome:
    """A launch that has ended.

    Attributes:
        code: its exit code.
        losses: the losses of each step that any process has printed, as hexadecimal strings.
        happened: the faults that have happened.
        starts: for each call of the training function, the number of processes and the first step.
        compiled: the numbers of modules that each process has compiled in its last call of the training function.
        verified: the step of the newest checkpoint on disk, which is intact; None without one.
        stderr: the standard error.
    """

    code: int
    losses: dict[int, set[str]]
    happened: list[str]
    starts: list[tuple[int, int]]
    compiled: list[int]
    verified: int | None
    stderr: str
    stdout: str = field(repr=False, default="")


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a launch."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "SHARDWISE_PLATFORMS": "cpu", **variables}


def verify_newest(folder: str) -> int | None:
    """Return the step of the newest checkpoint on disk that a program has saved; None if it has saved none.

    Raises:
        CheckpointError: if it is not intact. Whatever has happened, it must be.
    """
    steps = list_steps(location_of(f"{folder}/disk"))
    if steps:
        checkpoints.verify(f"{folder}/disk/{step_name(steps[-1])}")
    return steps[-1] if steps else None


def run(
    *faults: str,
    processes: int = 2,
    spares: int = 1,
    fewest: int | None = None,
    steps: int = 12,
    pause: float = 0,
    straggler_seconds: float = 0,
    time_limit: float = TIME_LIMIT,
) -> Outcome:
    """Run the program to its end.

    Args:
        faults: the faults that happen.
        processes: the number of processes.
        spares: the number of spare processes.
        fewest: the fewest processes that continue; by default, the others wait until a spare is ready.
        steps: the number of steps.
        pause: the seconds that each step takes at least.
        straggler_seconds: the seconds after which a slow process is replaced; 0 for never.
        time_limit: the seconds after which the launch is killed.

    Raises:
        TimeoutExpired: if the launch takes longer.
        CheckpointError: if the newest checkpoint on disk is not intact.
    """
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        launch = subprocess.run(
            [
                *(sys.executable, "-m", "shardwise", "launch", "-n", str(processes), "--spares", str(spares)),
                *("--devices-per-process", "2", "--log-dir", f"{folder}/logs"),
                *("--min-processes", str(processes if fewest is None else fewest)),
                *(["--replace-stragglers"] if straggler_seconds else []),
                *(str(PROGRAM), folder, "--steps", str(steps), "--pause", str(pause), "--faults", *faults),
            ],
            capture_output=True,
            text=True,
            timeout=time_limit,
            check=False,
            cwd=ROOT,
            env=environment(SHARDWISE_STRAGGLER_SECONDS=str(straggler_seconds)),
        )
        happened = sorted(path.name for path in Path(folder).glob("*@*"))
        verified = verify_newest(folder)
    losses: dict[int, set[str]] = {}
    for step, loss in re.findall(r"\] step (\d+) loss (\S+)", launch.stdout):
        losses.setdefault(int(step), set()).add(loss)
    starts = [tuple(map(int, each)) for each in re.findall(r"of (\d+) starts at step (\d+)", launch.stdout)]
    compiled = [int(count) for count in re.findall(r"\] compiled (\d+):", launch.stdout)]
    return Outcome(launch.returncode, losses, happened, starts, compiled, verified, launch.stderr, launch.stdout)


@cache
def undisturbed(processes: int, steps: int = 12) -> dict[int, set[str]]:
    """Return the losses of a run without faults."""
    outcome = run(processes=processes, spares=0, steps=steps)
    assert outcome.code == 0, outcome
    assert sorted(outcome.losses) == list(range(steps))
    assert all(len(each) == 1 for each in outcome.losses.values())
    return outcome.losses
