"""Time our calls and the peer's in alternation, so that load on the machine disturbs both sides equally.

The best of several rounds counts, since noise only adds time.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, final

ROOT = Path(__file__).resolve().parents[1]


@final
@dataclass(frozen=True)
class Effort:
    """The number of rounds, and the approximate `seconds` of a round per side (at least one call)."""

    rounds: int
    seconds: float


@final
@dataclass(frozen=True)
class Timing:
    """Seconds per call of every round. `expert`: the peer with sharding constraints by experts, if measured."""

    ours_rounds: tuple[float, ...]
    peer_rounds: tuple[float, ...]
    expert_rounds: tuple[float, ...] = ()

    @property
    def ours(self) -> float:
        return min(self.ours_rounds)

    @property
    def peer(self) -> float:
        return min(self.peer_rounds)

    @property
    def expert(self) -> float | None:
        return min(self.expert_rounds, default=None)

    @property
    def median_ratio(self) -> float:
        """The median ratio of single rounds. If it is far from the ratio of the best rounds, the machine was busy."""
        return median(ours / peer for ours, peer in zip(self.ours_rounds, self.peer_rounds, strict=True))


def interleaved(
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    effort: Effort,
    expert: Callable[[], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time all sides in this process, with the same number of calls each.

    The first call of each side is not counted, nor is the one that determines the number of calls per round.

    Args:
        ours, peer, expert: the calls.
        effort: the number and length of rounds.
        after: called with each result; not timed.
        clock: returns seconds; `process_time` for single-threaded calls, which load on the machine hardly disturbs.
    """
    calls = [ours, peer] if expert is None else [ours, peer, expert]
    sides = [
        partial(_seconds, call, clock) if after is None else partial(_seconds_without_after, call, after)
        for call in calls
    ]
    for side in sides:
        side(1)
    count = max(1, int(effort.seconds / max(side(1) for side in sides))) if effort.seconds else 1
    return alternate([partial(side, count) for side in sides], effort.rounds)


def in_processes(ours: str, peer: str, rounds: int) -> Timing:
    """Run each script in new processes; its last line are the seconds. The first run of each is not counted.

    Both sides read their bytecode from one cache, which the first runs fill, whatever PYTHONDONTWRITEBYTECODE says.
    """
    with TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for script in (ours, peer):
            _run_script(script, environment)
        return alternate([partial(_run_script, script, environment) for script in (ours, peer)], rounds)


def alternate(sides: Sequence[Callable[[], float]], rounds: int) -> Timing:
    """Call each side once per round, in alternating order. A side returns seconds."""
    rounds_of_side: list[list[float]] = [[] for _ in sides]
    for index in range(rounds):
        order = list(zip(sides, rounds_of_side, strict=True))
        for side, seconds in reversed(order) if index % 2 else order:
            seconds.append(side())
    return Timing(*map(tuple, rounds_of_side))


def _seconds(call: Callable[[], Any], clock: Callable[[], float], calls: int) -> float:
    """Return seconds per call. Garbage of the other side is collected first."""
    gc.collect()
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def _seconds_without_after(call: Callable[[], Any], after: Callable[[Any], Any], calls: int) -> float:
    """Return seconds until a call returns. Neither `after` nor the deallocation of the result is timed."""
    gc.collect()
    total = 0.0
    for _ in range(calls):
        start = perf_counter()
        result = call()
        total += perf_counter() - start
        after(result)
        del result
    return total / calls


def _run_script(script: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process of a benchmark failed:\n{script}\n{done.stdout}{done.stderr}")
    return float(done.stdout.split()[-1])
