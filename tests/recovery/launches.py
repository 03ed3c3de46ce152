"""Run `training.py` under `shardwise launch --spares`, with faults, and read what its processes print."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
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


def free_port():
    """Return a port of the loopback address that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def run(
    *faults: str,
    processes: int = 2,
    spares: int = 1,
    fewest: int | None = None,
    steps: int = 12,
    pause: float = 0,
    straggler_seconds: float = 0,
    nodes: int = 1,
    spare_nodes: int = 0,
    returning: Collection[int] = (),
    time_limit: float = TIME_LIMIT,
) -> Outcome:
    """Run the program to its end.

    Args:
        faults: the faults that happen.
        processes: the number of processes, on each node.
        spares: the number of spare processes, on each node.
        fewest: the fewest processes that continue; by default, the others wait until a spare is ready.
        steps: the number of steps.
        pause: the seconds that each step takes at least.
        straggler_seconds: the seconds after which a slow process is replaced; 0 for never.
        nodes: the number of launchers on this machine, each with a node of its own.
        spare_nodes: the number of nodes that have only spares.
        returning: the nodes whose launchers are started again once, when they have been killed.
        time_limit: the seconds after which the launchers are killed.

    Returns:
        The outcome, with the exit code and standard error of the launcher of node 0 that was started last.

    Raises:
        TimeoutExpired: if the launch takes longer.
        CheckpointError: if the newest checkpoint on disk is not intact.
    """
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        address = f"127.0.0.1:{free_port()}"
        everyone = (nodes - spare_nodes) * processes

        def command(node):
            places = ["--nodes", str(nodes), "--node-rank", str(node), "--coordinator", address] if nodes > 1 else []
            return [
                *(sys.executable, "-m", "shardwise", "launch", "-n", str(processes), "--spares", str(spares), *places),
                *("--spare-nodes", str(spare_nodes), "--devices-per-process", "2", "--log-dir", f"{folder}/logs"),
                *("--min-processes", str(everyone if fewest is None else fewest)),
                *(["--replace-stragglers"] if straggler_seconds else []),
                *(str(PROGRAM), folder, "--steps", str(steps), "--pause", str(pause), "--faults", *faults),
            ]

        variables = environment(
            SHARDWISE_STRAGGLER_SECONDS=str(straggler_seconds), SHARDWISE_COORDINATOR_TOKEN="the secret of the job"
        )
        codes, stdout, stderr = _run_launchers(
            folder, [command(node) for node in range(nodes)], returning, variables, time_limit
        )
        happened = sorted(path.name for path in Path(folder).glob("*@*"))
        verified = verify_newest(folder)
    losses: dict[int, set[str]] = {}
    for step, loss in re.findall(r"\] step (\d+) loss (\S+)", stdout):
        losses.setdefault(int(step), set()).add(loss)
    starts = [tuple(map(int, each)) for each in re.findall(r"of (\d+) starts at step (\d+)", stdout)]
    compiled = [int(count) for count in re.findall(r"\] compiled (\d+):", stdout)]
    return Outcome(codes[0], losses, happened, starts, compiled, verified, stderr, stdout)


def _run_launchers(folder, commands, returning, variables, time_limit):
    """Run a launcher per node. Return their exit codes, the output of all, and the errors of the launcher of node 0."""
    deadline = time.monotonic() + time_limit
    returning = set(returning)
    nodes = range(len(commands))

    def read(name):
        return "".join(Path(folder, f"{name}{node}").read_text() for node in nodes)

    def start(node):
        with open(f"{folder}/stdout{node}", "a") as stdout, open(f"{folder}/stderr{node}", "a") as stderr:
            return subprocess.Popen(commands[node], stdout=stdout, stderr=stderr, cwd=ROOT, env=variables)

    launchers = [start(node) for node in nodes]
    try:
        while any(launcher.poll() is None for launcher in launchers):
            for node in [node for node in returning if launchers[node].poll() == -signal.SIGKILL]:
                returning.discard(node)
                launchers[node] = start(node)
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(commands[0], time_limit, read("stdout"), read("stderr"))
            time.sleep(0.05)
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    return [launcher.returncode for launcher in launchers], read("stdout"), Path(folder, "stderr0").read_text()


@cache
def undisturbed(processes: int, steps: int = 12) -> dict[int, set[str]]:
    """Return the losses of a run without faults."""
    outcome = run(processes=processes, spares=0, steps=steps)
    assert outcome.code == 0, outcome
    assert sorted(outcome.losses) == list(range(steps))
    assert all(len(each) == 1 for each in outcome.losses.values())
    return outcome.losses
