"""Streams: when each kernel of one device runs.

If the chip overlaps communication with compute, there are three streams: compute, communication, and copies between the
memories of the device and the host. Each runs its first task in program order whose operands are ready, as a
latency-hiding scheduler does. While a collective runs, kernels compute at a lower rate (`Chip.lost_rate`), because both
share cores and memory bandwidth. Otherwise, all kernels run one after the other.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from shardwise.compiler.ir.program import Program
from shardwise.compiler.partition.kernels import Kernel
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.kernel_times import bytes_sent, kernel_seconds

COMPUTE, COMMUNICATION, COPIES = _STREAMS = range(3)

# How many kernels the scheduler looks ahead. Without a bound, all gathers of arguments would start at once, however
# late their results are needed. Their results would not fit in memory, and live bytes, counted in program order, would
# not show it.
_WINDOW = 256


class Task(NamedTuple):
    """All runs of a kernel.

    Attributes:
        kernel: the kernel.
        seconds: the time of all runs, if no collective outside them interferes.
        seconds_per_run: the time of one run.
        steps: the number of kernels that take time in one run; for a control op, those of its programs.
        sent: the bytes that the device sends in all runs.
        stream: the stream of a single step; several steps are compute. A loop of several steps is one compute task: its
            collectives overlap with its own kernels, at the loop's level.
        runs: one run of the programs of a control op: of each program, or of all together; of a conditional, of the
            longest one.
    """

    kernel: Kernel
    seconds: float
    seconds_per_run: float
    steps: int
    sent: float
    stream: int
    runs: tuple["Run", ...] = ()


class Run(NamedTuple):
    """One run of programs that run together.

    Attributes:
        programs: the programs.
        tasks: the tasks of each program.
        starts: the time at which each task starts.
        ends: the time at which each task ends: later than the start plus the seconds of the task, if collectives
            interfere with it.
        seconds: the time of the run.
    """

    programs: Sequence[Program]
    tasks: Sequence[Task]
    starts: Sequence[float]
    ends: Sequence[float]
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
    # Devices with more tokens run the same program: the order of its kernels is that for balanced experts.
    balanced = local.with_balanced_experts
    order = None if balanced is local else simulate_run(balanced, chip, programs).starts
    starts, ends = _schedule(tasks, chip, order)
    return Run(programs, tasks, starts, ends, max(ends, default=0.0))


def _simulate_kernel(local: LocalProgram, chip: Chip, kernel: Kernel) -> Task:
    op = kernel.root.op
    if not op.programs:
        sent = bytes_sent(local, kernel)
        if not (sent or kernel.bytes_accessed):
            return Task(kernel, 0.0, 0.0, 0, 0.0, COMPUTE)
        seconds = kernel_seconds(local, kernel, chip)
        copies = op.reads_host_memory or op.writes_host_memory
        return Task(kernel, seconds, seconds, 1, sent, COMMUNICATION if sent else COPIES if copies else COMPUTE)
    groups = (op.programs,) if op.runs_programs_together else [(program,) for program in op.programs]
    runs = tuple(simulate_run(local, chip, programs) for programs in groups)
    if op.runs_one_program:
        runs = (max(runs, key=lambda run: run.seconds),)
    tasks = [task for run in runs for task in run.tasks]
    once = sum(run.seconds for run in runs)
    total = _pipelined_seconds(local, chip, kernel, once) if op.runs_programs_together else once * trip_count(kernel)
    sent = sum(task.sent for task in tasks) * trip_count(kernel)
    return Task(kernel, total, once, sum(task.steps for task in tasks), sent, _common_stream(tasks), runs)


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


def _schedule(
    tasks: Sequence[Task], chip: Chip, order: Sequence[float] | None = None
) -> tuple[list[float], list[float]]:
    """Return the start time and the end time of each task.

    Args:
        tasks: the tasks.
        chip: the hardware.
        order: see `list_schedule`.
    """
    seconds = [task.seconds for task in tasks]
    if not chip.overlaps:
        times = list(accumulate(seconds, initial=0.0))
        return times[:-1], times[1:]
    producers = {value: index for index, task in enumerate(tasks) for value in task.kernel.writes}
    needs = [{producers[value] for value in task.kernel.reads if value in producers} for task in tasks]
    streams = [task.stream for task in tasks]
    lost_rates = [chip.lost_rate(task.sent, task.seconds) if task.stream == COMMUNICATION else 0.0 for task in tasks]
    return list_schedule(seconds, streams, needs, lost_rates, order=order)


def _needs_in_order(streams: Sequence[int], needs: Sequence[set[int]], order: Sequence[float]) -> list[set[int]]:
    """Return needs with which each stream runs its tasks in an order; of tasks with one start time, the first first."""
    needs = [set(need) for need in needs]
    for stream in _STREAMS:
        in_order = sorted((index for index in range(len(needs)) if streams[index] == stream), key=order.__getitem__)
        for index, following in pairwise(in_order):
            needs[following].add(index)
    return needs


def list_schedule(
    seconds: Sequence[float],
    streams: Sequence[int],
    needs: Sequence[set[int]],
    lost_rates: Sequence[float] = (),
    window: int = _WINDOW,
    order: Sequence[float] | None = None,
) -> tuple[list[float], list[float]]:
    """Return the start time and the end time of each task on one of the streams.

    A stream runs its first ready task in program order; if none is ready, the task that becomes ready first.

    Args:
        seconds: the time of each task, if nothing interferes with it.
        streams: the stream of each task: 0 for compute, 1 for communication, 2 for copies.
        needs: for each task, the tasks that must end before it starts.
        lost_rates: for each task of the communication stream, the fraction of the compute rate that is lost while it
            runs. By default, nothing is lost.
        window: the number of tasks to look ahead, from the first task that has not started.
        order: the start times of another schedule of these tasks, whose order each stream keeps.
    """
    count = len(seconds)
    if order is not None:
        needs, window = _needs_in_order(streams, needs, order), count
    starts, ends = [0.0] * count, [0.0] * count
    missing = [len(need) for need in needs]
    followers: list[list[int]] = [[] for _ in range(count)]
    for index, need in enumerate(needs):
        for other in need:
            followers[other].append(index)
    ready: list[list[int]] = [[] for _ in _STREAMS]  # heaps, by position
    later: list[int] = []  # a heap of the ready tasks beyond the window
    running: list[int | None] = [None for _ in _STREAMS]
    started = [False] * count
    first = 0  # the first task that has not started
    now = 0.0

    def add_ready(index: int) -> None:
        heapq.heappush(later if index >= first + window else ready[streams[index]], index)

    def compute_rate() -> float:
        """Return the rate of compute now, relative to that without a collective."""
        collective = running[COMMUNICATION]
        return 1.0 if collective is None or not lost_rates else 1 - lost_rates[collective]

    def change_rate(before: float) -> None:
        """Set the end of the task that computes now, whose rate was `before`."""
        if (index := running[COMPUTE]) is not None and (rate := compute_rate()) != before:
            ends[index] = now + (ends[index] - now) * before / rate

    def start(index: int) -> None:
        nonlocal first
        stream, before = streams[index], compute_rate()
        running[stream] = index
        starts[index] = now
        ends[index] = now + seconds[index] / (before if stream == COMPUTE else 1.0)
        if stream == COMMUNICATION:
            change_rate(before)
        started[index] = True
        while first < count and started[first]:
            first += 1
        while later and later[0] < first + window:
            add_ready(heapq.heappop(later))

    def complete(index: int) -> None:
        before = compute_rate()
        running[streams[index]] = None
        if streams[index] == COMMUNICATION:
            change_rate(before)
        for follower in followers[index]:
            missing[follower] -= 1
            if not missing[follower]:
                add_ready(follower)

    for index in range(count):
        if not missing[index]:
            add_ready(index)
    while True:
        for done in [index for index in running if index is not None and ends[index] <= now]:
            complete(done)
        free = next((stream for stream in _STREAMS if running[stream] is None and ready[stream]), None)
        if free is not None:
            start(heapq.heappop(ready[free]))  # it may end at once, so that other tasks are ready
        elif any(index is not None for index in running):
            now = min(ends[index] for index in running if index is not None)
        else:
            return starts, ends
