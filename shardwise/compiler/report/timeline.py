"""timeline: the kernels of one device in a call, with start, estimated time and live bytes.

A kernel is a group of equations that XLA fuses (`kernels.py`); its time follows from the specs of the chip, and its
start from the simulation of the device's streams (`streams.py`).

A kernel in a loop's body is one step, whose time is summed over all iterations. A loop of unknown length counts as one
iteration, and a conditional as its longest branch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.ir.program import NOWHERE, Equation, Source, Value
from shardwise.compiler.partition.live_ranges import Held
from shardwise.compiler.partition.liveness import Liveness
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.idle import IdleRow, idle_of, idle_rows
from shardwise.compiler.report.kernel_times import bytes_sent
from shardwise.compiler.report.streams import COMPUTE, Run, Task, simulate_run, trip_count

_ROUNDING = 1e-12  # the relative error of times that are sums of many


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
        repeated_flops: the part of `flops` that repeats flops of another step, as scores in the gradient of attention.
        accessed: bytes of memory traffic in all runs.
        idle: the part of `seconds` in which the device has no work of its own, such as a pipeline's bubble.
        slowed: the part of `seconds` that collectives add which run at the same time.
        collectives: the number of collectives that are sent in one launch.
        copied: bytes that are copied between the memories of the device and the host in all runs.
        exposed: the part of `seconds` in which the device sends or copies, and does not compute.
        beside: the first and last step that runs at the same time, as op and source line; empty if there is none.
        iteration: 1 if it runs for the next iteration of its loop, -1 if for the one before, else 0.
        axes: the mesh axes along which it communicates.
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
    slowed: float = 0.0
    collectives: int = 0
    copied: float = 0.0
    exposed: float = 0.0
    beside: tuple[tuple[str, Source], ...] = ()
    iteration: int = 0
    axes: tuple[str, ...] = ()
    repeated_flops: float = 0.0

    def repeated(self, start: float, count: int, slowdown: float = 1.0) -> "Step":
        """Return the step in a loop that starts at `start`, runs `count` times, and takes `slowdown` times as long."""
        scale = count * slowdown
        return replace(
            self,
            start=start + self.start * scale,
            seconds=self.seconds * scale,
            sent=self.sent * count,
            times=self.times * count,
            flops=self.flops * count,
            repeated_flops=self.repeated_flops * count,
            accessed=self.accessed * count,
            idle=self.idle * scale,
            slowed=self.slowed * count + self.seconds * (scale - count),
            copied=self.copied * count,
            exposed=self.exposed * scale,
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
    run = simulate_run(local, chip, (local.program,))
    level = _Steps(local, live).of_run(run, 0)
    alive = [held for around in liveness.at_peak() for held in around.live.values()] if lists_alive else []
    alive.sort(key=lambda held: -held.bytes)
    peak = _step_of([kernel.root for kernel in kernels[: liveness.peak + 1]], level.numbers)
    idle = idle_rows((step.source, step.seconds) for step in level.steps)
    return Timeline(tuple(level.steps), run.seconds, peak, liveness.peak_bytes, tuple(alive), idle)


def _step_of(roots: Sequence[Equation], numbers: Mapping[Equation, int]) -> int:
    """Return the step of the last of these kernels.

    On CPU, a kernel may compute a value that XLA's program has and the user's lacks. Its step is then the next one of
    the same source line after the steps of the kernels before, or the last of these.

    Args:
        roots: the root of each kernel, in order.
        numbers: the step of each equation of the user's program.
    """
    by_value = {value: number for equation, number in numbers.items() for value in equation.outputs}
    known = [by_value[value] for root in roots for value in root.outputs if value in by_value]
    before = known[-1] if known else -1
    if roots and not any(value in by_value for value in roots[-1].outputs):
        same_line = [number for equation, number in numbers.items() if equation.source == roots[-1].source]
        before = min([number for number in same_line if number > before], default=before)
    return max(before, 0)


@final
@dataclass
class _Level:
    """The steps of one run of programs or of a kernel.

    Attributes:
        steps: the steps.
        numbers: the index of each equation's step.
    """

    steps: list[Step]
    numbers: dict[Equation, int]


@final
@dataclass(frozen=True)
class _Steps:
    """Describes a simulated run as steps.

    Attributes:
        local: the program of one device.
        live: the live bytes on the device when each value is computed.
    """

    local: LocalProgram
    live: Mapping[Value, int]

    def of_run(self, run: Run, depth: int) -> _Level:
        """Return the steps of a run, and of the runs in it."""
        parts = [self._of_task(task, depth, iteration) for task, iteration in self._with_iterations(run)]
        _expose(run, parts)
        level = _Level([], {})
        for task, start, end, part in zip(run.tasks, run.starts, run.ends, parts, strict=True):
            kernel = task.kernel
            slowdown = _slowdown(task, start, end)
            offset = len(level.steps)
            steps = [step.repeated(start, trip_count(kernel), slowdown) for step in part.steps]
            level.steps += map(_with_run_alone, steps) if kernel.root.op.runs_programs_together else steps
            level.numbers.update({equation: offset + number for equation, number in part.numbers.items()})
            # The memory peak may be at an equation without a step, such as a view, or in a branch that is not the
            # longest: report it at the preceding step.
            last = max(0, len(level.steps) - 1)
            inner = (equation for program in kernel.root.op.programs for equation in program.walk())
            level.numbers.update({each: last for each in (*kernel.equations, *inner) if each not in part.numbers})
        return level

    def _with_iterations(self, run: Run) -> Iterator[tuple[Task, int]]:
        """Yield the tasks of a run, with the iteration of a loop that each belongs to, relative to the current one."""
        tasks = iter(run.tasks)
        for number, program in enumerate(run.programs):
            iteration = len(run.programs) // 2 - number  # of three programs, the first runs ahead
            for _ in self.local.kernel_groups(program).kernels:
                yield next(tasks), iteration

    def _of_task(self, task: Task, depth: int, iteration: int) -> _Level:
        """Return the step of one run of a kernel, or the steps of one run of the programs that a control op holds."""
        if not task.runs:
            return self._of_kernel(task, depth, iteration) if task.steps else _Level([], {})
        part = _Level([], {})
        seconds = 0.0
        for run in task.runs:
            inner = self.of_run(run, depth + 1)
            offset = len(part.steps)
            part.steps += [step.repeated(seconds, 1) for step in inner.steps]
            part.numbers.update({equation: offset + number for equation, number in inner.numbers.items()})
            seconds += run.seconds
        return part

    def _of_kernel(self, task: Task, depth: int, iteration: int) -> _Level:
        kernel, seconds = task.kernel, task.seconds_per_run
        op, source = kernel.root.op, kernel.root.source
        sent = bytes_sent(self.local, kernel)
        types = [value.type for value in kernel.root.inputs]
        results = (value for equation in kernel.equations for value in equation.outputs)
        row = idle_of(source)
        step = Step(
            op.name,
            source,
            0.0,
            seconds,
            max((self.live[value] for value in results if value in self.live), default=0),
            sent,
            1,
            depth,
            op.flops(*types),
            kernel.bytes_accessed,
            row.share * seconds if row else 0.0,
            0.0,
            len(self.local.launches.get(kernel.root, (kernel.root,))) if sent else 0,
            op.host_bytes(*types),
            iteration=iteration,
            axes=op.communicates_along if sent else (),
            repeated_flops=op.repeated_flops * op.flops(*types),
        )
        return _Level([step], dict.fromkeys(kernel.equations, 0))


def _slowdown(task: Task, start: float, end: float) -> float:
    """Return how many times as long a task takes because of collectives that run at the same time."""
    added = end - start - task.seconds
    return 1 + added / task.seconds if added > _ROUNDING * end else 1.0


def _expose(run: Run, parts: Sequence[_Level]) -> None:
    """Set, for each launch of collectives and copy, what runs beside it and for how long it is exposed."""
    computing = sorted(
        (start, end, _site(part.steps[0]), _site(part.steps[-1]))
        for task, start, end, part in zip(run.tasks, run.starts, run.ends, parts, strict=True)
        if task.seconds_per_run and task.stream == COMPUTE
    )
    firsts, lasts = [start for start, *_ in computing], [end for _, end, *_ in computing]
    for task, start, part in zip(run.tasks, run.starts, parts, strict=True):
        if task.stream != COMPUTE:
            end = start + task.seconds_per_run
            first, after = bisect_right(lasts, start), bisect_left(firsts, end)
            beside = computing[first:after]
            hidden = sum(min(end, stop) - max(start, begin) for begin, stop, *_ in beside)
            lines = (beside[0][2], beside[-1][3]) if beside else ()
            exposed = task.seconds_per_run - min(hidden, task.seconds_per_run)
            part.steps[0] = replace(part.steps[0], exposed=exposed, beside=lines)


def _with_run_alone(step: Step) -> Step:
    """Return a step of programs that run together.

    A collective for another iteration runs alone, exposed, once. In that iteration, it slows no kernel down.
    """
    if step.slowed:
        once = step.slowed / step.times
        return replace(step, seconds=step.seconds - once, slowed=step.slowed - once)
    if not step.sent or not step.iteration:
        return step
    return replace(step, exposed=step.exposed + (step.seconds - step.exposed) / step.times)


def _site(step: Step) -> tuple[str, Source]:
    return step.op, step.source
