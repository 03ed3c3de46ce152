"""Idle time of devices in a schedule, such as the bubble of a pipeline.

All devices run the same program in every tick, with or without work, so the program does not show which are idle. The
loops of a schedule therefore run in a named scope that records it. `pipeline[1f1b,stage,idle=3/11]` means that along
the mesh axis `stage`, each device has no work in 3 of 11 ticks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import Source

_SCOPE = re.compile(r"(\w+)\[([^,\]]+),([^,\]]+),idle=(\d+)/(\d+)\]")


@final
@dataclass(frozen=True)
class IdleRow:
    """The idle time of each device in a schedule.

    Attributes:
        what: the schedule, such as `1f1b pipeline`.
        axis: the mesh axis along which devices are scheduled.
        idle_ticks: the number of ticks in which a device has no work.
        ticks: the number of ticks.
        seconds: the estimated time of all ticks.
    """

    what: str
    axis: str
    idle_ticks: int
    ticks: int
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """The share of the time in which a device is idle."""
        return self.idle_ticks / self.ticks

    @property
    def idle_seconds(self) -> float:
        """The time in which a device is idle."""
        return self.share * self.seconds


def idle_scope(kind: str, schedule: str, axis: str, idle_ticks: int, ticks: int) -> str:
    """Return the name of the scope in which the loops of a schedule run: `pipeline[1f1b,stage,idle=3/11]`."""
    return f"{kind}[{schedule},{axis},idle={idle_ticks}/{ticks}]"


def idle_of(source: Source) -> IdleRow | None:
    """Return the idle time that the innermost named scope of an op records, without seconds; None if none does."""
    for name in reversed(source.scope):
        if match := _SCOPE.fullmatch(name):
            kind, schedule, axis, idle, ticks = match.groups()
            return IdleRow(f"{schedule} {kind}", axis, int(idle), int(ticks))
    return None


def idle_rows(steps: Iterable[tuple[Source, float]]) -> tuple[IdleRow, ...]:
    """Return the idle time of each schedule of a program, given the sources and times of its steps."""
    seconds: dict[IdleRow, float] = {}
    for source, duration in steps:
        if (row := idle_of(source)) is not None:
            seconds[row] = seconds.get(row, 0.0) + duration
    return tuple(IdleRow(row.what, row.axis, row.idle_ticks, row.ticks, duration) for row, duration in seconds.items())
