"""StragglerSearch: finds a process that is slower on the host than the others, from the paces of all of them.

All processes of a synchronous program have equal times of steps, because they wait for the slowest. What differs is the
time that a process does not wait for results: it loads data, computes on the host, or is short of CPU time.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import final

_LEAST_SHARE = 0.2  # of a step: by how much a slow process delays the others at least
_SAMPLES = 6  # in the time after which a slow process is reported


@final
@dataclass(frozen=True)
class Pace:
    """What a process has done since it joined: the steps that it reported, and the seconds it did not wait in them."""

    steps: int
    busy_seconds: float

    def __str__(self) -> str:
        return f"{self.steps} {self.busy_seconds}"

    @classmethod
    def parse(cls, text: str) -> "Pace | None":
        """Return the pace that `str` has written; None for other text, such as no answer."""
        try:
            steps, busy = text.split(" ")
            return cls(int(steps), float(busy))
        except ValueError:
            return None


@final
class PaceMeter:
    """Measures the pace of this process.

    Attributes:
        pace: the pace until the last step.
        waited_seconds: the seconds in which the thread that runs the steps has waited for other processes.
    """

    def __init__(self) -> None:
        self.pace = Pace(0, 0.0)
        self.waited_seconds = 0.0
        self._thread: int | None = None  # that runs the steps; None before the first one has ended
        self._last_end = (time.monotonic(), 0.0)  # of a step: the time, and the seconds waited until then

    def add_wait(self, start: float) -> None:
        """Count the time from `start`, of `time.monotonic`, as a wait for other processes."""
        if self._thread in (None, threading.get_ident()):  # others wait while the steps run, such as to save
            self.waited_seconds += time.monotonic() - start

    def end_step(self) -> None:
        """Count a step."""
        self._thread = threading.get_ident()
        (last, waited), now = self._last_end, time.monotonic()
        self._last_end = (now, self.waited_seconds)
        busy = max(0.0, now - last - (self.waited_seconds - waited))
        self.pace = Pace(self.pace.steps + 1, self.pace.busy_seconds + busy)


@final
@dataclass(frozen=True)
class Straggler:
    """A process that delays the others.

    Attributes:
        rank: its index.
        host: its host.
        step: the last step that it reported.
        busy_seconds: the seconds of a step in which it does not wait for results.
        other_seconds: the same seconds of the other processes: their median.
        stack: the Python stack of its main thread.
    """

    rank: int
    host: str
    step: int | None
    busy_seconds: float
    other_seconds: float
    stack: str

    def __str__(self) -> str:
        return (
            f"process {self.rank} on {self.host} delays the others: it works {self.busy_seconds:.3g} s of each "
            f"step on the host, and the others {self.other_seconds:.3g} s (last step: {self.step}). "
            "Look at what it does below, and at the load of its host. `shardwise launch --spares 1 "
            f"--replace-stragglers` replaces such a process.\n{self.stack}"
        )


@final
class StragglerSearch:
    """Compares the paces of all processes, in samples.

    Args:
        seconds: the time for which a process must be slow.
    """

    def __init__(self, seconds: float):
        self.interval = seconds / _SAMPLES
        self._last: dict[int, Pace] = {}
        self._time = 0.0
        self._slow = Counter[int]()  # rank → consecutive samples in which it was slow

    def add(self, time: float, paces: Mapping[int, Pace]) -> tuple[int, float, float] | None:
        """Add a sample.

        Args:
            time: the time of the sample, in seconds.
            paces: the pace of each process that answered.

        Returns:
            The rank of a process that was slow for the whole time, its busy seconds per step, and the median of the
            others; None if there is none. A process that stays slow is returned again after the same time.
        """
        elapsed, self._time = time - self._time, time
        last, self._last = self._last, dict(paces)
        busy: dict[int, float] = {}
        fewest = elapsed
        for rank, pace in paces.items():
            before = last.get(rank)
            if before is None or pace.steps <= before.steps:
                continue  # no step since the last sample, such as during a compilation
            busy[rank] = (pace.busy_seconds - before.busy_seconds) / (pace.steps - before.steps)
            fewest = min(fewest, elapsed / (pace.steps - before.steps))
        if len(busy) < 2:
            return None
        others = {rank: median(seconds for other, seconds in busy.items() if other != rank) for rank in busy}
        slow = [rank for rank in busy if busy[rank] - others[rank] > _LEAST_SHARE * fewest]
        self._slow = Counter({rank: self._slow[rank] + 1 for rank in slow})
        slowest = max((rank for rank in slow if self._slow[rank] >= _SAMPLES), key=busy.__getitem__, default=None)
        if slowest is None:
            return None
        del self._slow[slowest]
        return slowest, busy[slowest], others[slowest]
