"""Schedules of pipeline parallelism: which unit of work each device does in each tick, as plain data.

A unit is the forward or the backward pass of one microbatch through one stage. With `p` devices and `v` chunks, device
`d` has the stages `d`, `d + p`, …, `d + (v - 1)·p`; chunk `c` of it is stage `c·p + d`. A microbatch passes from each
device to the next one, and from the last device to the next chunk of the first one.

All devices do units of the same kind in a tick, so that a tick takes as long as one unit, and the program of a tick is
the same on all devices. Device `d` does its forward unit number `k` in round `d + k`, and its backward unit number `k`
in round `r + p - 1 - d + k`, where `r` is the round of the first backward unit. A round is a forward tick and a
backward tick; ticks in which no device has work do not exist. Microbatches pass through the chunks of a device in
groups of `p`: then a unit's operand always arrives in the round before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.errors import StrategyError

FORWARD, BACKWARD = "F", "B"
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@final
@dataclass(frozen=True)
class Unit:
    """One unit of work of a device.

    Attributes:
        kind: "F" for a forward pass, "B" for a backward pass.
        microbatch: the number of the microbatch.
        chunk: the number of the chunk: on device `d` of `p`, the stage is `chunk·p + d`.
        slot: where the device stores the input of the stage between the forward and the backward pass.
    """

    kind: str
    microbatch: int
    chunk: int
    slot: int


@final
@dataclass(frozen=True)
class Schedule:
    """The schedule of a pipeline. `print(schedule)` draws it.

    Attributes:
        name: "gpipe", "1f1b" or "interleaved".
        devices: the number of devices.
        microbatches: the number of microbatches.
        chunks: the number of stages on each device.
        table: for each device, its unit in each tick; None where it is idle.
    """

    name: str
    devices: int
    microbatches: int
    chunks: int
    table: tuple[tuple[Unit | None, ...], ...]

    @property
    def ticks(self) -> int:
        """The number of ticks."""
        return len(self.table[0])

    @cached_property
    def kinds(self) -> str:
        """The kind of the units in each tick, such as `FFFBFBFBBB`."""
        return "".join(next(unit.kind for unit in column if unit) for column in zip(*self.table, strict=True))

    @property
    def idle(self) -> tuple[int, ...]:
        """The number of ticks in which each device is idle."""
        return tuple(row.count(None) for row in self.table)

    @property
    def bubble(self) -> float:
        """The share of the ticks in which a device is idle, the mean over devices: (p − 1)/(v·m + p − 1)."""
        return sum(self.idle) / (self.ticks * self.devices)

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """The number of stage inputs that each device stores at most: microbatches whose backward pass is to come."""
        return tuple(1 + max(unit.slot for unit in row if unit) for row in self.table)

    def __str__(self) -> str:
        """Draw the schedule: a line per device, a column per tick."""
        cells = [[_cell(unit, self.chunks) for unit in row] for row in self.table]
        width = max(len(cell) for row in cells for cell in row)
        chunks = f", {self.chunks} chunks" if self.chunks > 1 else ""
        lines = [f"{self.name}: {self.devices} devices, {self.microbatches} microbatches{chunks}"]
        lines += [
            f"device {device:<2} {' '.join(cell.ljust(width) for cell in row)}".rstrip()
            for device, row in enumerate(cells)
        ]
        stored = ", ".join(map(str, self.stored))
        idle = f"each device is idle in {self.idle[0]} ({self.bubble:.1%})"
        return "\n".join([*lines, f"{self.ticks} ticks, {idle}; stored stage inputs: {stored}"])


def _cell(unit: Unit | None, chunks: int) -> str:
    if unit is None:
        return "·"
    return f"{unit.kind}{unit.microbatch}" + (chr(ord("a") + unit.chunk) if chunks > 1 else "")


def pipeline_schedule(schedule: str, devices: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Compute the schedule of a pipeline.

    Args:
        schedule: "gpipe", "1f1b" or "interleaved".
        devices: the number of devices along the axis of the pipeline.
        microbatches: the number of microbatches.
        chunks: the number of stages on each device; more than 1 only for "interleaved".

    Returns:
        A `Schedule`: a table of devices × ticks with the unit of work of each device in each tick.

    Raises:
        StrategyError: if the schedule is unknown, if a number is not positive, if there are chunks in a schedule
            without them, or if the microbatches of "interleaved" are not divisible by the devices.

    Example:
        >>> print(jax.parallel.pipeline_schedule("1f1b", 2, 3))
        1f1b: 2 devices, 3 microbatches
        device 0  F0 F1 ·  F2 B0 ·  B1 B2
        device 1  ·  F0 B0 F1 B1 F2 B2 ·
        8 ticks, each device is idle in 2 (25.0%); stored stage inputs: 3, 1
    """
    check_schedule(schedule, microbatches, chunks)
    if not isinstance(devices, int) or devices < 1:
        raise StrategyError(f"pipeline: the number of devices must be a positive integer, not {devices!r}")
    if schedule == "interleaved" and microbatches % devices:
        more = -(-microbatches // devices) * devices
        raise StrategyError(
            f"pipeline: schedule 'interleaved' passes microbatches through its chunks in groups of {devices}, the "
            f"number of devices, which does not divide {microbatches} microbatches: use {more} microbatches, or "
            "schedule='1f1b'."
        )
    units = {kind: list(_order(schedule, kind, devices, microbatches, chunks)) for kind in (FORWARD, BACKWARD)}
    count = microbatches * chunks
    first_backward = count + devices - 1 if schedule == "gpipe" else devices * chunks - 1
    starts = {
        FORWARD: [device for device in range(devices)],
        BACKWARD: [first_backward + devices - 1 - device for device in range(devices)],
    }
    columns = []
    for round_number in range(first_backward + count + devices - 1):
        for kind in (FORWARD, BACKWARD):
            numbers = [round_number - start for start in starts[kind]]
            column = [units[kind][number] if 0 <= number < count else None for number in numbers]
            if any(column):
                columns.append([(kind, *unit) if unit else None for unit in column])
    table = tuple(tuple(_with_slots(row)) for row in zip(*columns, strict=True))
    return Schedule(schedule, devices, microbatches, chunks, table)


def check_schedule(schedule: str, microbatches: int, chunks: int) -> None:
    """Check the parameters of a schedule.

    Raises:
        StrategyError: if one of them is not valid.
    """
    if schedule not in SCHEDULES:
        raise StrategyError(f"pipeline: unknown schedule {schedule!r}: use {', '.join(map(repr, SCHEDULES))}")
    for name, number in (("microbatches", microbatches), ("chunks", chunks)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise StrategyError(f"pipeline: {name} must be a positive integer, not {number!r}")
    if chunks > 1 and schedule != "interleaved":
        raise StrategyError(
            f"pipeline: schedule {schedule!r} has one stage on each device, not chunks={chunks}: use "
            "schedule='interleaved', or leave chunks out."
        )


def _order(schedule: str, kind: str, devices: int, microbatches: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Yield the microbatch and the chunk of a device's units of one kind, in order. All devices have the same order."""
    if schedule == "gpipe":  # the derivative of a loop runs backwards
        numbers = range(microbatches) if kind == FORWARD else reversed(range(microbatches))
        yield from ((number, 0) for number in numbers)
        return
    group = devices if chunks > 1 else 1
    for first in range(0, microbatches, group):
        for chunk in range(chunks) if kind == FORWARD else reversed(range(chunks)):
            yield from ((first + number, chunk) for number in range(group))


def _with_slots(row: tuple[tuple[str, int, int] | None, ...]) -> Iterator[Unit | None]:
    """Yield a device's units with the slots of their stage inputs: the lowest one that is free at that time."""
    used: dict[tuple[int, int], int] = {}
    for cell in row:
        if cell is None:
            yield None
            continue
        kind, microbatch, chunk = cell
        if kind == FORWARD:
            used[microbatch, chunk] = next(slot for slot in range(len(used) + 1) if slot not in used.values())
            yield Unit(kind, microbatch, chunk, used[microbatch, chunk])
        else:
            yield Unit(kind, microbatch, chunk, used.pop((microbatch, chunk)))
