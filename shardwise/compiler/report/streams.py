"""Streams: when each kernel of one device runs.

If the chip overlaps communication with compute, there are three streams: compute, communication, and copies between the
memories of the device and the host. Each runs its first task in program order whose operands are ready, as a
latency-hiding scheduler does. Otherwise, all kernels run one after the other.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from shardwise.compiler.ir.program import Program
from shardwise.compiler.partition.kernels import Kernel
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.kernel_times import kernel_seconds

COMPUTE, COMMUNICATION, COPIES = _STREAMS = range(3)

# How many kernels the scheduler looks ahead. Without a bound, all gathers of arguments would start at once, however
# late their results are needed. Their results would not fit in memory, and live bytes, counted in program order, would
# not show it.
_WINDOW = 256


class Task(NamedTuple):
    """All runs of a kernel.

    Attributes:
        kernel: the kernel.
        seconds: the time of all runs.
        seconds_per_run: the time of one run.
        steps: the number of kernels that take time in one run; for a control op, those of its programs.
        stream: the stream of a single step; several steps are compute. A loop of several steps is one compute task: its
            collectives overlap with its own kernels, at the loop's level.
        runs: one run of the programs of a control op: of each program, or of all together.
    """

    kernel: Kernel
    seconds: float
    seconds_per_run: float
    steps: int
    stream: int
    runs: tuple["Run", ...] = ()


class Run(NamedTuple):
    """One run of programs that run together.

    Attributes:
        programs: the programs.
        tasks: the tasks of each program.
        starts: the time at which each task starts.
        seconds: the time of the run.
    """

    programs: Sequence[Program]
    tasks: Sequence[Task]
    starts: Sequence[float]
    seconds: float


def simulated_seconds(local: LocalProgram, chip: Chip) -> float:
    """Return the time of a call that `timeline` predicts, without its steps."""
    return simulate_run(local, chip, (local.program,)).seconds


def simulate_run(local: LocalProgram, chip: Chip, programs: Sequence[Program]) -> Run:
    """Return one run of programs that run together.

    Args:
        local: the program of one device, which contains the programs.
        chip: the hardware.
        programs: the programs.
    """
    tasks = [
        _simulate_kernel(local, chip, kernel) for program in programs for kernel in local.kernel_groups(program).kernels
    ]
    starts = _starts(tasks, chip)
    end = max((start + task.seconds for start, task in zip(starts, tasks, strict=True)), default=0.0)
    return Run(programs, tasks, starts, end)


def _simulate_kernel(local: LocalProgram, chip: Chip, kernel: Kernel) -> Task:
    op = kernel.root.op
    if not op.programs:
        if not (local.bytes_sent(kernel.root) or kernel.bytes_accessed):
            return Task(kernel, 0.0, 0.0, 0, COMPUTE)
        seconds = kernel_seconds(local, kernel, chip)
        return Task(kernel, seconds, seconds, 1, _stream(local, kernel))
    groups = (op.programs,) if op.runs_programs_together else [(program,) for program in op.programs]
    runs = tuple(simulate_run(local, chip, programs) for programs in groups)
    tasks = [task for run in runs for task in run.tasks]
    once = sum(run.seconds for run in runs)
    total = _pipelined_seconds(local, chip, kernel, once) if op.runs_programs_together else once * trip_count(kernel)
    return Task(kernel, total, once, sum(task.steps for task in tasks), _common_stream(tasks), runs)


def _stream(local: LocalProgram, kernel: Kernel) -> int:
    """Return the stream on which a kernel without programs runs."""
    op = kernel.root.op
    if local.bytes_sent(kernel.root):
        return COMMUNICATION
    return COPIES if op.reads_host_memory or op.writes_host_memory else COMPUTE


def _common_stream(tasks: Iterable[Task]) -> int:
    """Return the stream of tasks that are one together."""
    filled = [task for task in tasks if task.steps]
    return filled[0].stream if len(filled) == 1 and filled[0].steps == 1 else COMPUTE


def _pipelined_seconds(local: LocalProgram, chip: Chip, kernel: Kernel, together: float) -> float:
    """Return the time of a pipelined loop.

    The first program runs one iteration ahead, so it runs alone before the loop, and not in the last iteration. The
    last program runs one iteration behind.

    Args:
        local: the program of one device, which contains the loop.
        chip: the hardware.
        kernel: the kernel of the loop.
        together: the time of all programs together.
    """

    def seconds_of(programs: Sequence[Program]) -> float:
        return simulate_run(local, chip, programs).seconds

    programs, count = kernel.root.op.programs, trip_count(kernel)
    alone = seconds_of(programs[:1]) + seconds_of(programs[-1:])
    if count == 1:
        return alone + seconds_of(programs[1:-1])
    return alone + seconds_of(programs[:-1]) + (count - 2) * together + seconds_of(programs[1:])


def trip_count(kernel: Kernel) -> int:
    """Return how many times a kernel runs."""
    count = kernel.root.op.trip_count
    return 1 if count is None else count


def _starts(tasks: Sequence[Task], chip: Chip) -> list[float]:
    """Return the start time of each task."""
    seconds = [task.seconds for task in tasks]
    if not chip.overlaps:
        return list(accumulate(seconds, initial=0.0))[:-1]
    producers = {value: index for index, task in enumerate(tasks) for value in task.kernel.writes}
    needs = [{producers[value] for value in task.kernel.reads if value in producers} for task in tasks]
    return list_schedule(seconds, [task.stream for task in tasks], needs)


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
