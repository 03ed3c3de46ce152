"""timeline: the kernels of one device in a call, with start, estimated time and live bytes.

A kernel is a group of equations that XLA fuses (`kernels.py`); its time follows from the specs of the chip. If the chip
overlaps communication with compute, there are three streams: compute, communication, and copies between the memories of
the device and the host. Each runs its first task in program order whose operands are ready, as a latency-hiding
scheduler does. Otherwise, all kernels run one after the other.

A kernel in a loop's body is one step, whose time is summed over all iterations. A loop of unknown length counts as one
iteration; all branches of a conditional are counted.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, final

from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.partition.kernels import Kernel
from shardwise.compiler.partition.live_ranges import Held
from shardwise.compiler.partition.liveness import Liveness
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.idle import IdleRow, idle_of, idle_rows
from shardwise.compiler.report.kernel_times import bytes_sent, kernel_seconds

_COMPUTE, _COMMUNICATION, _COPIES = _STREAMS = range(3)

# How many kernels the scheduler looks ahead. Without a bound, all gathers of arguments would start at once, however
# late their results are needed. Their results would not fit in memory, and live bytes, counted in program order, would
# not show it.
_WINDOW = 256


@final
@dataclass(frozen=True)
class Step:
    """One kernel in time.

    Attributes:
        op: the name of its main op.
        source: the user's line.
        start: seconds from the start of the call.
        seconds: the time of all `times` runs.
        held: live bytes on the device while it runs.
        sent: bytes that the device sends in all runs.
        times: how many times it runs in one call.
        depth: the number of loops and branches around it.
        flops: flops of products in all runs.
        accessed: bytes of memory traffic in all runs.
        idle: the part of `seconds` in which the device has no work of its own, such as a pipeline's bubble.
        collectives: the number of collectives that are sent in one launch.
        copied: bytes that are copied between the memories of the device and the host in all runs.
        exposed: the part of `seconds` in which the device sends or copies, and does not compute.
        beside: the first and last step that runs at the same time, as op and source line; empty if there is none.
        iteration: 1 if it runs for the next iteration of its loop, -1 if for the one before, else 0.
    """

    op: str
    source: Source
    start: float
    seconds: float
    held: int
    sent: float = 0.0
    times: int = 1
    depth: int = 0
    flops: float = 0.0
    accessed: float = 0.0
    idle: float = 0.0
    collectives: int = 0
    copied: float = 0.0
    exposed: float = 0.0
    beside: tuple[tuple[str, Source], ...] = ()
    iteration: int = 0

    def repeated(self, start: float, count: int) -> "Step":
        """Return the step in a loop that starts at `start` and runs `count` times."""
        return replace(
            self,
            start=start + self.start * count,
            seconds=self.seconds * count,
            sent=self.sent * count,
            times=self.times * count,
            flops=self.flops * count,
            accessed=self.accessed * count,
            idle=self.idle * count,
            copied=self.copied * count,
            exposed=self.exposed * count,
        )


@final
@dataclass(frozen=True)
class Timeline:
    """The steps of a call, in program order.

    Attributes:
        steps: the steps.
        seconds: the time of the call.
        peak: the index of the step with the most live bytes.
        peak_bytes: the live bytes at that step.
        alive: the values that are live at that step, largest first; without steps, the arguments. Empty unless
            requested.
        idle: a row for each schedule in which devices are idle, such as a pipeline.
    """

    steps: tuple[Step, ...]
    seconds: float
    peak: int
    peak_bytes: int
    alive: tuple[Held, ...]
    idle: tuple[IdleRow, ...] = ()


def timeline(
    local: LocalProgram,
    chip: Chip,
    names: Sequence[str] = (),
    donated: Mapping[int, int] | None = None,
    lists_alive: bool = True,
) -> Timeline:
    """Return the steps of a program on a chip.

    Args:
        local: the program of one device.
        chip: the hardware whose cost model is used.
        names: the names of the inputs.
        donated: for each donated input, the output that reuses its buffer.
        lists_alive: whether to list the values that are live at the memory peak, which takes a second sweep.
    """
    inputs = {
        value: Held(
            names[index] if index < len(names) else f"input {index}", str(value.type), value.type.nbytes, NOWHERE
        )
        for index, value in enumerate(local.program.inputs)
    }
    liveness = Liveness(local, inputs, donated or {}, chip)
    kernels = liveness.ranges.kernels
    live = {
        value: held
        for kernel, held in zip(kernels, liveness.live_bytes, strict=True)
        for equation in kernel.equations
        for value in equation.outputs
    }
    level = _Schedule(local, chip, live).level((local.program,), 0)
    alive = [held for around in liveness.at_peak() for held in around.live.values()] if lists_alive else []
    alive.sort(key=lambda held: -held.bytes)
    numbers = {value: number for equation, number in level.numbers.items() for value in equation.outputs}
    peak = (
        next((numbers[value] for value in kernels[liveness.peak].root.outputs if value in numbers), 0) if kernels else 0
    )
    idle = idle_rows((step.source, step.seconds) for step in level.steps)
    return Timeline(tuple(level.steps), level.seconds, peak, liveness.peak_bytes, tuple(alive), idle)


@final
@dataclass
class _Level:
    """The steps of one run of a program.

    Attributes:
        steps: the steps.
        numbers: the index of each equation's step.
        seconds: the time of the run.
        stream: the stream of a single step; several steps are compute.
    """

    steps: list[Step]
    numbers: dict[Equation, int]
    seconds: float = 0.0
    stream: int = _COMPUTE


@final
@dataclass(frozen=True)
class _Schedule:
    """The kernels of a program on the streams of a chip."""

    local: LocalProgram
    chip: Chip
    live: Mapping[Value, int]

    def level(self, programs: Sequence[Program], depth: int) -> _Level:
        """Return the steps of one run of programs that run together, and of their nested programs."""
        kernels, parts = [], []
        for number, program in enumerate(programs):
            iteration = len(programs) // 2 - number  # of three programs, the first runs ahead
            for kernel in self.local.kernel_groups(program).kernels:
                kernels.append(kernel)
                parts.append(self._part(kernel, depth, iteration))
        durations = [self._duration(kernel, part) for kernel, part in zip(kernels, parts, strict=True)]
        starts = _starts(kernels, durations, [part.stream for part in parts], self.chip)
        self._expose(parts, starts, durations)
        level = _Level([], {})
        for kernel, part, start, duration in zip(kernels, parts, starts, durations, strict=True):
            count = _trip_count(kernel)
            offset = len(level.steps)
            steps = [step.repeated(start, count) for step in part.steps]
            level.steps += map(_with_run_alone, steps) if kernel.root.op.runs_programs_together else steps
            level.numbers.update({equation: offset + number for equation, number in part.numbers.items()})
            # The memory peak may be at an equation without a step, such as a view: report it at the preceding step.
            last = max(0, len(level.steps) - 1)
            level.numbers.update({equation: last for equation in kernel.equations if equation not in part.numbers})
            level.seconds = max(level.seconds, start + duration)
        level.stream = _common_stream((len(part.steps), part.stream) for part in parts)
        return level

    def _part(self, kernel: Kernel, depth: int, iteration: int) -> _Level:
        """Return the step of a kernel, or the steps of one run of the programs that a control op holds."""
        op = kernel.root.op
        if op.programs:
            part = _Level([], {})
            runs = (op.programs,) if op.runs_programs_together else tuple((program,) for program in op.programs)
            inners = [self.level(programs, depth + 1) for programs in runs]
            for inner in inners:
                offset = len(part.steps)
                part.steps += [step.repeated(part.seconds, 1) for step in inner.steps]
                part.numbers.update({equation: offset + number for equation, number in inner.numbers.items()})
                part.seconds += inner.seconds
            part.stream = _common_stream((len(inner.steps), inner.stream) for inner in inners)
            return part
        sent = bytes_sent(self.local, kernel)
        accessed = kernel.bytes_accessed
        if not sent and not accessed:
            return _Level([], {})
        types = [value.type for value in kernel.root.inputs]
        flops, copied = op.flops(*types), op.host_bytes(*types)
        seconds = kernel_seconds(self.local, kernel, self.chip)
        results = (value for equation in kernel.equations for value in equation.outputs)
        held = max((self.live[value] for value in results if value in self.live), default=0)
        row = idle_of(kernel.root.source)
        idle = row.share * seconds if row else 0.0
        collectives = len(self.local.launches.get(kernel.root, (kernel.root,))) if sent else 0
        step = Step(
            op.name,
            kernel.root.source,
            0.0,
            seconds,
            held,
            sent,
            1,
            depth,
            flops,
            accessed,
            idle,
            collectives,
            copied,
            iteration=iteration,
        )
        return _Level([step], dict.fromkeys(kernel.equations, 0), seconds, _stream(self.local, kernel))

    def _expose(self, parts: Sequence[_Level], starts: Sequence[float], durations: Sequence[float]) -> None:
        """Set, for each launch of collectives and copy, what runs beside it and for how long it is exposed."""
        computing = sorted(
            (start, start + duration, _site(part.steps[0]), _site(part.steps[-1]))
            for part, start, duration in zip(parts, starts, durations, strict=True)
            if part.seconds and part.stream == _COMPUTE
        )
        firsts, lasts = [start for start, *_ in computing], [end for _, end, *_ in computing]
        for part, start in zip(parts, starts, strict=True):
            if part.stream != _COMPUTE:
                end = start + part.seconds
                first, after = bisect_right(lasts, start), bisect_left(firsts, end)
                beside = computing[first:after]
                hidden = sum(min(end, stop) - max(start, begin) for begin, stop, *_ in beside)
                lines = (beside[0][2], beside[-1][3]) if beside else ()
                part.steps[0] = replace(part.steps[0], exposed=part.seconds - min(hidden, part.seconds), beside=lines)

    def _duration(self, kernel: Kernel, part: _Level) -> float:
        """Return the time of all runs of a kernel. `part` has the time of one run."""
        if kernel.root.op.runs_programs_together:
            return _pipelined_seconds(kernel, part.seconds, lambda programs: self.level(programs, 0).seconds)
        return part.seconds * _trip_count(kernel)


def simulated_seconds(local: LocalProgram, chip: Chip) -> float:
    """Return the time of a call that `timeline` predicts, without its steps."""
    return _simulate(local, chip, (local.program,)).seconds


class _Task(NamedTuple):
    """The time of kernels, the number of their steps, and the stream of a single step."""

    seconds: float
    steps: int
    stream: int


def _simulate(local: LocalProgram, chip: Chip, programs: Sequence[Program]) -> _Task:
    """Return one run of programs that run together."""
    kernels = [kernel for program in programs for kernel in local.kernel_groups(program).kernels]
    tasks = [_simulate_kernel(local, chip, kernel) for kernel in kernels]
    seconds = [task.seconds for task in tasks]
    starts = _starts(kernels, seconds, [task.stream for task in tasks], chip)
    end = max((start + duration for start, duration in zip(starts, seconds, strict=True)), default=0.0)
    return _joined(end, tasks)


def _simulate_kernel(local: LocalProgram, chip: Chip, kernel: Kernel) -> _Task:
    """Return all runs of a kernel."""
    op = kernel.root.op
    if not op.programs:
        is_step = bool(local.bytes_sent(kernel.root) or kernel.bytes_accessed)
        return _Task(kernel_seconds(local, kernel, chip) if is_step else 0.0, int(is_step), _stream(local, kernel))
    if op.runs_programs_together:
        together = _simulate(local, chip, op.programs)
        seconds = _pipelined_seconds(
            kernel, together.seconds, lambda programs: _simulate(local, chip, programs).seconds
        )
        return together._replace(seconds=seconds)
    runs = [_simulate(local, chip, (program,)) for program in op.programs]
    return _joined(sum(run.seconds for run in runs) * _trip_count(kernel), runs)


def _joined(seconds: float, tasks: Sequence[_Task]) -> _Task:
    """Return tasks that take this long together, as one task."""
    stream = _common_stream((task.steps, task.stream) for task in tasks)
    return _Task(seconds, sum(task.steps for task in tasks), stream)


def _common_stream(parts: Iterable[tuple[int, int]]) -> int:
    """Return the stream of parts with a number of steps and a stream each: that of a single step, else compute."""
    filled = [(steps, stream) for steps, stream in parts if steps]
    return filled[0][1] if len(filled) == 1 and filled[0][0] == 1 else _COMPUTE


def _pipelined_seconds(kernel: Kernel, together: float, seconds_of: Callable[[Sequence[Program]], float]) -> float:
    """Return the time of a pipelined loop.

    The first program runs one iteration ahead, so it runs alone before the loop, and not in the last iteration. The
    last program runs one iteration behind.

    Args:
        kernel: the kernel of the loop.
        together: the time of all programs together.
        seconds_of: returns the time of programs that run together.
    """
    programs, count = kernel.root.op.programs, _trip_count(kernel)
    alone = seconds_of(programs[:1]) + seconds_of(programs[-1:])
    if count == 1:
        return alone + seconds_of(programs[1:-1])
    return alone + seconds_of(programs[:-1]) + (count - 2) * together + seconds_of(programs[1:])


def _trip_count(kernel: Kernel) -> int:
    count = kernel.root.op.trip_count
    return 1 if count is None else count


def _starts(kernels: Sequence[Kernel], seconds: Sequence[float], streams: Sequence[int], chip: Chip) -> list[float]:
    """Return the start time of each kernel.

    A loop of several steps is one compute task: its collectives overlap with its own kernels, at the loop's level.

    Args:
        kernels: the kernels.
        seconds: the time of each kernel.
        streams: the stream of each kernel.
        chip: the hardware.
    """
    if not chip.overlaps:
        return list(accumulate(seconds, initial=0.0))[:-1]
    producers = {value: index for index, kernel in enumerate(kernels) for value in kernel.writes}
    needs = [{producers[value] for value in kernel.reads if value in producers} for kernel in kernels]
    return list_schedule(seconds, streams, needs)


def _with_run_alone(step: Step) -> Step:
    """Return a step of programs that run together. A collective for another iteration runs alone, exposed, once."""
    if not step.sent or not step.iteration:
        return step
    return replace(step, exposed=step.exposed + (step.seconds - step.exposed) / step.times)


def _site(step: Step) -> tuple[str, Source]:
    return step.op, step.source


def _stream(local: LocalProgram, kernel: Kernel) -> int:
    """Return the stream on which a kernel without programs runs."""
    op = kernel.root.op
    if local.bytes_sent(kernel.root):
        return _COMMUNICATION
    return _COPIES if op.reads_host_memory or op.writes_host_memory else _COMPUTE


def list_schedule(
    seconds: Sequence[float], streams: Sequence[int], needs: Sequence[set[int]], window: int = _WINDOW
) -> list[float]:
    """Return the start time of each task on one of the streams.

    A stream runs its first ready task in program order; if none is ready, the task that becomes ready first.

    Args:
        seconds: the time of each task.
        streams: the stream of each task: 0 for compute, 1 for communication, 2 for copies.
        needs: for each task, the earlier tasks that must end before it starts.
        window: the number of tasks to look ahead, from the first task that has not started.
    """
    count = len(seconds)
    starts = [0.0] * count
    ends = [0.0] * count
    missing = [len(need) for need in needs]
    followers: list[list[int]] = [[] for _ in range(count)]
    for number, need in enumerate(needs):
        for other in need:
            followers[other].append(number)
    free = [0.0 for _ in _STREAMS]
    waiting: list[list[tuple[float, int]]] = [[] for _ in _STREAMS]  # ordered by ready time
    ready: list[list[int]] = [[] for _ in _STREAMS]  # ordered by position
    first = 0  # the first task that has not started
    started = [False] * count
    later: list[tuple[int, float]] = []  # tasks beyond the window, by position

    def offer(number: int, time: float) -> None:
        if number >= first + window:
            heapq.heappush(later, (number, time))
        else:
            heapq.heappush(waiting[streams[number]], (time, number))

    for number in range(count):
        if not missing[number]:
            offer(number, 0.0)
    for _ in range(count):
        for stream in _STREAMS:
            while waiting[stream] and waiting[stream][0][0] <= free[stream]:
                heapq.heappush(ready[stream], heapq.heappop(waiting[stream])[1])
        starting = [
            free[stream] if ready[stream] else max(free[stream], waiting[stream][0][0]) if waiting[stream] else None
            for stream in _STREAMS
        ]
        stream = min((s for s in _STREAMS if starting[s] is not None), key=lambda s: (starting[s], s))
        number = heapq.heappop(ready[stream]) if ready[stream] else heapq.heappop(waiting[stream])[1]
        start = starting[stream]
        assert start is not None
        starts[number], ends[number] = start, start + seconds[number]
        free[stream] = ends[number]
        started[number] = True
        while first < count and started[first]:
            first += 1
        while later and later[0][0] < first + window:
            offer(*heapq.heappop(later))
        for follower in followers[number]:
            missing[follower] -= 1
            if not missing[follower]:
                offer(follower, max(ends[other] for other in needs[follower]))
    return starts
