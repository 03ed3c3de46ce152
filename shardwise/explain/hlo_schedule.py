"""The schedule of a compiled module: when each collective runs, and how much of it is exposed.

The input is optimized, scheduled HLO, from any library: instructions in the order in which a device issues them, with
asynchronous collectives as pairs of start and done. Kernels run one after another. A collective begins at its start, or
when the one before it has ended, and its done waits for it. The time of that wait is exposed. Times are those of a
chip's cost model; everything else is read from the module.

A loop body counts once per iteration, or once if XLA does not know the trip count. Of the branches of a conditional,
the longest counts.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import final

from shardwise.compiler.plan.chip import Chip
from shardwise.explain.hlo_kernels import HloKernels
from shardwise.explain.hlo_module import Collective, HloModule, branches_of, loop_of
from shardwise.runtime.hlo_text import HloInstruction


@final
@dataclass(frozen=True)
class Launch:
    """One collective in the schedule.

    Attributes:
        collective: the collective, with the number of times that it runs.
        operands: the number of arrays that it sends in one launch.
        seconds: the time on the links, of one run.
        exposed: the time in which the device waits for it, of one run.
        beside: the time of the kernels between its start and its done, of one run.
    """

    collective: Collective
    operands: int
    seconds: float
    exposed: float
    beside: float

    @property
    def times(self) -> int:
        """The number of times that it runs."""
        return self.collective.times

    def repeated(self, count: int) -> "Launch":
        """Return the launch in a loop that runs `count` times."""
        return replace(self, collective=replace(self.collective, times=self.times * count))


@final
@dataclass(frozen=True)
class HloSchedule:
    """The schedule of one run of a module.

    Attributes:
        launches: the collectives, in the order of their ends.
        compute_seconds: the time of all kernels.
    """

    launches: tuple[Launch, ...]
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The time of the run."""
        return self.compute_seconds + self.exposed_seconds

    @property
    def communication_seconds(self) -> float:
        """The time of all collectives on the links."""
        return sum(each.times * each.seconds for each in self.launches)

    @property
    def exposed_seconds(self) -> float:
        """The time in which the device waits for a collective."""
        return sum(each.times * each.exposed for each in self.launches)

    def counts(self) -> dict[str, int]:
        """Return the number of launches of each kind."""
        counter: Counter[str] = Counter()
        for each in self.launches:
            counter[each.collective.kind] += each.times
        return dict(counter)


def read_schedule(text: str, chip: Chip) -> HloSchedule:
    """Return the schedule of a compiled module.

    Args:
        text: its optimized, scheduled HLO.
        chip: the hardware whose cost model is used.

    Raises:
        ValueError: if the text is no scheduled HLO module, or has a collective of an unknown kind.
    """
    header = text.partition("\n")[0]
    if "is_scheduled=true" not in header:
        raise ValueError(f"the module is not scheduled: {header[:80]!r}")
    module = HloModule(text)
    return _Reader(module, HloKernels(module.computations, chip), chip).of(module.entry)


@final
@dataclass
class _Pending:
    """A collective that has started. `end` is when it ends, `kernels` the time of all kernels before its start."""

    collective: Collective
    operands: int
    end: float
    seconds: float
    kernels: float


@final
@dataclass
class _Clock:
    """The state of a device: the time, the time when its links are free, and the collectives that have started."""

    now: float = 0.0
    free: float = 0.0
    kernels: float = 0.0
    pending: dict[str, _Pending] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)

    def compute(self, seconds: float) -> None:
        """Run kernels."""
        self.now += seconds
        self.kernels += seconds

    def start(self, name: str, collective: Collective, operands: int, seconds: float) -> None:
        """Start a collective, on links that run one at a time."""
        self.free = max(self.now, self.free) + seconds
        self.pending[name] = _Pending(collective, operands, self.free, seconds, self.kernels)

    def wait(self, name: str) -> None:
        """Wait for the end of a collective."""
        each = self.pending.pop(name)
        exposed = max(0.0, each.end - self.now)
        self.now += exposed
        beside = self.kernels - each.kernels
        self.launches.append(Launch(each.collective, each.operands, each.seconds, exposed, beside))

    def run(self, schedule: HloSchedule, count: int) -> None:
        """Run a computation, such as a loop's body, `count` times."""
        self.now += count * schedule.seconds
        self.kernels += count * schedule.compute_seconds
        self.launches += [launch.repeated(count) for launch in schedule.launches]


@final
@dataclass
class _Reader:
    """Runs the computations of a module. `found` has the schedules of those that have run already."""

    module: HloModule
    kernels: HloKernels
    chip: Chip
    found: dict[str, HloSchedule] = field(default_factory=dict)

    def of(self, computation: str) -> HloSchedule:
        """Return the schedule of one run of a computation."""
        if computation not in self.found:
            clock = _Clock()
            for instruction in self.module.computations.by_name[computation]:
                self._issue(instruction, computation, clock)
            for name in list(clock.pending):  # a start whose done is elsewhere
                clock.wait(name)
            self.found[computation] = HloSchedule(tuple(clock.launches), clock.kernels)
        return self.found[computation]

    def _issue(self, instruction: HloInstruction, scope: str, clock: _Clock) -> None:
        opcode, name = instruction.opcode, instruction.name
        if collective := self.module.collective(instruction):
            seconds = self.chip.ring_of(collective.devices).time(collective.traffic)
            clock.start(name, collective, len(instruction.operands), seconds)
            if not opcode.endswith("-start"):
                clock.wait(name)
        elif opcode.endswith("-done") and instruction.operands[0] in clock.pending:
            clock.wait(instruction.operands[0])
        elif opcode == "while":
            loop = loop_of(instruction)
            clock.run(self.of(loop.body), 1 if loop.trip_count is None else loop.trip_count)
        elif opcode == "conditional":
            clock.run(max(map(self.of, branches_of(instruction)), key=lambda branch: branch.seconds), 1)
        elif opcode in ("call", "async-start"):
            self._call(instruction, clock)
        else:
            clock.compute(self.kernels.seconds(instruction, scope))

    def _call(self, instruction: HloInstruction, clock: _Clock) -> None:
        """Run called computations. An asynchronous call of one collective is that collective, until its done."""
        for called in instruction.called:
            schedule = self.of(called)
            if instruction.opcode == "async-start" and len(schedule.launches) == 1 and not schedule.compute_seconds:
                (launch,) = schedule.launches
                clock.start(instruction.name, launch.collective, launch.operands, launch.seconds)
            else:
                clock.run(schedule, 1)
