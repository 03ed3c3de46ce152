"""Times of callables, ours and the peer's, taken in turns so that a busy machine disturbs all alike.

The best of several rounds counts: noise only ever adds time. Nothing here judges a time.
"""

import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, final

ROOT = Path(__file__).resolve().parents[1]


@final
@dataclass(frozen=True)
class Effort:
    """How long to look: rounds in turns, each of about `seconds` a side (and of one call at least)."""

    rounds: int
    seconds: float


@final
@dataclass(frozen=True)
class Timing:
    """Seconds a call, for each round; `expert`: of the peer with its experts' constraints, where that was asked for."""

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
        """Of the ratios of single rounds: far from the ratio of the bests, the machine was busy."""
        return median(ours / peer for ours, peer in zip(self.ours_rounds, self.peer_rounds, strict=True))


def interleaved(
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    effort: Effort,
    expert: Callable[[], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
) -> Timing:
    """All in this process, the same number of calls each; `after` takes what a call returns, and is not timed.

    The first call of each side does not count, nor does the one that tells how many make a round.
    """
    calls = [ours, peer] if expert is None else [ours, peer, expert]
    sides = [partial(_seconds, call) if after is None else partial(_seconds_before, call, after) for call in calls]
    for side in sides:
        side(1)
    count = max(1, int(effort.seconds / max(side(1) for side in sides))) if effort.seconds else 1
    return _in_turns([partial(side, count) for side in sides], effort.rounds)


def in_processes(ours: str, peer: str, rounds: int) -> Timing:
    """Each script in a fresh process that prints seconds as its last line; one run of each does not count."""
    for script in (ours, peer):
        _printed(script)
    return _in_turns([partial(_printed, ours), partial(_printed, peer)], rounds)


def _in_turns(sides: Sequence[Callable[[], float]], rounds: int) -> Timing:
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        turns = list(zip(sides, found, strict=True))
        for side, seconds in reversed(turns) if number % 2 else turns:
            seconds.append(side())
    return Timing(*map(tuple, found))


def _seconds(call: Callable[[], Any], calls: int) -> float:
    """Seconds a call. The other side's garbage is collected first, so that it is not on this side's bill."""
    gc.collect()
    start = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - start) / calls


def _seconds_before(call: Callable[[], Any], after: Callable[[Any], Any], calls: int) -> float:
    """Seconds until a call returns; what is done with its result then takes its time in between, and so does letting go
    of it: to give back memory takes longer, at times, than a call."""
    gc.collect()
    total = 0.0
    for _ in range(calls):
        start = perf_counter()
        result = call()
        total += perf_counter() - start
        after(result)
        del result
    return total / calls


def _printed(script: str) -> float:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a benchmark's process failed:\n{script}\n{done.stdout}{done.stderr}")
    return float(done.stdout.split()[-1])
