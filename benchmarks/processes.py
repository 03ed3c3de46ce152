"""Two processes of four devices relative to one process of eight: how much slower calls and steps become.

A row is the ratio of both times, ours and JAX's. The four groups of processes exist at the same time and take turns, so
that load on the machine disturbs all of them alike.
"""

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median

from benchmarks.measure import Timing
from benchmarks.row import Case, Row
from benchmarks.worker import Worker, workers

WORKER = "benchmarks/process_worker.py"
LIBRARIES = ("ours", "peer")
GROUPS = [(library, processes) for library in LIBRARIES for processes in (1, 2)]
CALLS = {  # of each round
    "jit call, x+1": 200,
    "jit call, sum": 100,
    "training step, example": 30,
    "training step, larger": 5,
}


def cases(quick: bool) -> list[Case]:
    return [Case("2 × 4 devices / 1 × 8 devices", partial(rows, 1 if quick else 21, quick))]


def rows(rounds: int, quick: bool) -> list[Row]:
    """Return for each call the median of the times on two processes relative to one in the same round."""
    with _groups() as groups:
        result = []
        for name, calls in CALLS.items():
            for group in groups:
                _seconds(group, name, 2)  # compiles
            measured = [[_seconds(group, name, 1 if quick else calls) for group in groups] for _ in range(rounds)]
            ours_one, ours_two, peer_one, peer_two = zip(*measured, strict=True)
            growth = [
                median(two / one for one, two in zip(*rounds, strict=True))
                for rounds in ((ours_one, ours_two), (peer_one, peer_two))
            ]
            result += [
                Row(f"{name}: 2 × 4 / 1 × 8", "growth", *growth, 1.0),
                Row.timed(f"{name}: 1 × 8", Timing(ours_one, peer_one)),
                Row.timed(f"{name}: 2 × 4", Timing(ours_two, peer_two)),
            ]
        return result


@contextmanager
def _groups() -> Iterator[list[list[Worker]]]:
    """Start a group of processes for each library and number of processes."""
    commands = []
    for library, processes in GROUPS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        commands += [(WORKER, library, *map(str, (rank, processes, port, 8 // processes))) for rank in range(processes)]
    with workers(*commands) as started:
        every = iter(started)
        yield [[next(every) for _ in range(processes)] for _, processes in GROUPS]


def _seconds(group: Sequence[Worker], name: str, calls: int) -> float:
    """Return the seconds per call in the slowest process of a group."""
    with ThreadPoolExecutor(len(group)) as executor:
        return max(executor.map(lambda worker: worker.ask(name=name, calls=calls), group))
