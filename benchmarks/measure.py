"""Times of two callables, ours and the peer's, taken in turns so that a busy machine disturbs both alike.

The best of several rounds counts: noise only ever adds time. Nothing here judges a time.
"""

import gc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
    """Seconds a call, for each round."""

    ours_rounds: tuple[float, ...]
    peer_rounds: tuple[float, ...]

    @property
    def ours(self) -> float:
        return min(self.ours_rounds)

    @property
    def peer(self) -> float:
        return min(self.peer_rounds)

    @property
    def median_ratio(self) -> float:
        """Of the ratios of single rounds: far from the ratio of the bests, the machine was busy."""
        return median(ours / peer for ours, peer in zip(self.ours_rounds, self.peer_rounds, strict=True))


def interleaved(ours: Callable[[], Any], peer: Callable[[], Any], effort: Effort) -> Timing:
    """Both in this process, the same number of calls; the first two of each side do not count."""
    for side in (ours, peer):
        side()
    calls = max(1, int(effort.seconds / max(_seconds(ours, 1), _seconds(peer, 1))))
    return _in_turns(lambda: _seconds(ours, calls), lambda: _seconds(peer, calls), effort.rounds)


def in_processes(ours: str, peer: str, rounds: int) -> Timing:
    """Each script in a fresh process that prints seconds as its last line; one run of each does not count."""
    for script in (ours, peer):
        _printed(script)
    return _in_turns(lambda: _printed(ours), lambda: _printed(peer), rounds)


def _in_turns(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> Timing:
    ours_rounds, peer_rounds = [], []
    for number in range(rounds):
        if number % 2:
            peer_rounds.append(peer())
            ours_rounds.append(ours())
        else:
            ours_rounds.append(ours())
            peer_rounds.append(peer())
    return Timing(tuple(ours_rounds), tuple(peer_rounds))


def _seconds(call: Callable[[], Any], calls: int) -> float:
    """Seconds a call. The other side's garbage is collected first, so that it is not on this side's bill."""
    gc.collect()
    start = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - start) / calls


def _printed(script: str) -> float:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a benchmark's process failed:\n{script}\n{done.stdout}{done.stderr}")
    return float(done.stdout.split()[-1])
