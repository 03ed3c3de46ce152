"""The same Flax code on Shardwise and on JAX: each library has a process of its own, and these take turns."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

from benchmarks.measure import ROOT, Timing, alternate
from benchmarks.row import Case, Row, Unit

WORKER = "benchmarks/flax_worker.py"
# Counts with their units and bars.
COUNTS: dict[str, tuple[Unit, float | None]] = {
    "wire bytes": ("bytes", 1.0),
    "collectives": ("collectives", None),
    "temp memory": ("bytes", 1.0),
    "argument memory": ("bytes", 1.0),
    "flops": ("flops", 1.0),
}
CALLS = {
    "nnx.jit call, Linear(2, 2), 1 device": "call",
    "nnx.jit call, update of a tiny transformer, 1 device": "update",
}
KINDS = ("data parallel", "FSDP", "tensor parallel", "FSDP × tensor")


def cases(quick: bool) -> list[Case]:
    rounds, step_calls, calls = (1, 1, 1) if quick else (9, 3, 200)
    return [
        *[Case(f"NNX {kind}", partial(step_rows, kind, rounds, step_calls)) for kind in KINDS],
        *[Case(name, partial(call_rows, name, case, rounds, calls)) for name, case in CALLS.items()],
    ]


def step_rows(kind: str, rounds: int, calls: int) -> list[Row]:
    with workers() as (ours, peer):
        mine, theirs = ours.ask(case=kind), peer.ask(case=kind)
        time = _times(ours, peer, kind, rounds, calls)
    return [
        *[Row(f"NNX {kind}: {name}", unit, mine[name], theirs[name], bar) for name, (unit, bar) in COUNTS.items()],
        Row.timed(f"NNX {kind}: step time", time, 1.0),
    ]


def call_rows(name: str, case: str, rounds: int, calls: int) -> list[Row]:
    with workers() as (ours, peer):
        return [Row.timed(name, _times(ours, peer, case, rounds, calls), 1.0)]


def _times(ours: "Worker", peer: "Worker", case: str, rounds: int, calls: int) -> Timing:
    sides = [partial(worker.ask, case=case, calls=calls) for worker in (ours, peer)]
    for side in sides:  # compiles
        side()
    return alternate(sides, rounds)


@final
class Worker:
    """A process that answers requests; see `flax_worker.py`."""

    def __init__(self, *command: str):
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *command, WORKER],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """Return the answer to a request."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a benchmark failed; its error is above: {request}")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def workers() -> Iterator[tuple[Worker, Worker]]:
    """Start a process for Shardwise and one for JAX."""
    pair = Worker("-m", "shardwise", "run"), Worker()
    try:
        yield pair
    finally:
        for worker in pair:
            worker.close()
