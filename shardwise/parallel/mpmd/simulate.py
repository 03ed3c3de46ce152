"""simulate: predict the time of a task schedule from the times of its tasks and transfers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule

GATHER, REDUCE = "gather", "reduce"  # work of a rank besides its tasks


@final
@dataclass(frozen=True)
class TaskTimes:
    """The times of a pipeline's tasks, in seconds or any other unit.

    Attributes:
        forward: the time of a forward pass; one number for all stages, or one for each.
        input: the time of an input gradient.
        weight: the time of a weight gradient.
        transfer: the time to send a microbatch's activation or cotangent to another rank.
        gather: the time in which a rank gathers the parameters of a stage, before the stage's first task.
        reduce: the time in which a rank reduces the gradients of a stage, after the stage's last task.

    Example:
        >>> jax.parallel.TaskTimes(forward=1.0, input=1.2, weight=0.9, transfer=0.1).of(jax.parallel.Task("B", 0, 0))
        2.1
    """

    forward: float | Sequence[float] = 1.0
    input: float | Sequence[float] = 1.0
    weight: float | Sequence[float] = 1.0
    transfer: float = 0.0
    gather: float | Sequence[float] = 0.0
    reduce: float | Sequence[float] = 0.0

    def of(self, task: Task) -> float:
        """Return the time of a task."""
        if task.kind == BACKWARD:
            return _at(self.input, task.stage) + _at(self.weight, task.stage)
        times = {FORWARD: self.forward, INPUT: self.input}.get(task.kind, self.weight)
        return _at(times, task.stage)


def _at(times: float | Sequence[float], stage: int) -> float:
    return times[stage] if isinstance(times, Sequence) else times


@final
class CollectiveSpan(NamedTuple):
    """The time in which a rank gathers the parameters of a stage, or reduces its gradients.

    Attributes:
        kind: "gather" or "reduce".
        stage: the index of the stage.
        start: the start.
        end: the end.
    """

    kind: str
    stage: int
    start: float
    end: float


@final
@dataclass(frozen=True)
class Simulation:
    """The predicted run of a schedule.

    Attributes:
        schedule: the schedule.
        spans: for each rank, the start and end of each of its tasks, in order.
        collectives: for each rank, the times besides its tasks in which it gathers parameters or reduces gradients.

    Example:
        >>> schedule = jax.parallel.task_schedule("1f1b", ranks=2, microbatches=2)
        >>> jax.parallel.simulate_schedule(schedule, jax.parallel.TaskTimes()).spans[0][:2]
        ((0.0, 1.0), (1.0, 2.0))
    """

    schedule: TaskSchedule
    spans: tuple[tuple[tuple[float, float], ...], ...]
    collectives: tuple[tuple["CollectiveSpan", ...], ...] = ()

    @cached_property
    def total(self) -> float:
        """The time until the last rank has finished."""
        last_tasks = [spans[-1][1] for spans in self.spans if spans]
        return max([*last_tasks, *(each.end for rank in self.collectives for each in rank)], default=0.0)

    @cached_property
    def idle(self) -> tuple[float, ...]:
        """For each rank, the time in which it neither runs a task nor gathers or reduces."""
        collectives = self.collectives or ((),) * len(self.spans)
        return tuple(
            self.total - sum(end - start for start, end in spans) - sum(each.end - each.start for each in others)
            for spans, others in zip(self.spans, collectives, strict=True)
        )

    @property
    def bubble(self) -> float:
        """The share of the time in which ranks run no task, the mean over ranks."""
        return sum(self.idle) / (self.total * len(self.spans))

    def __str__(self) -> str:
        """Describe the total time, and the idle time and peak of live activations of each rank."""
        lines = [f"{self.schedule.name}: total {self.total:g}, bubble {self.bubble:.1%}"]
        peaks = self.schedule.peak_activations
        for rank, (idle, peak) in enumerate(zip(self.idle, peaks, strict=True)):
            lines.append(f"rank {rank:<2} idle {idle:g}, {peak} live activations")
        return "\n".join(lines)

    def write_trace(self, path: str | Path) -> None:
        """Write the tasks as a trace for Perfetto (https://ui.perfetto.dev) or Chrome, one track per rank.

        Args:
            path: the file to write, in the JSON trace event format. Times are read as seconds.
        """
        events: list[dict[str, Any]] = []
        for rank, (tasks, spans) in enumerate(zip(self.schedule.ranks, self.spans, strict=True)):
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}})
            live = 0
            for task, (start, end) in zip(tasks, spans, strict=True):
                span = {"ph": "X", "ts": start * 1e6, "dur": (end - start) * 1e6, "pid": 0, "tid": rank}
                details = {"stage": task.stage, "microbatch": task.microbatch}
                events.append({"name": str(task), **span, "args": details})
                change = (task.kind == FORWARD) - task.ends_activations
                if change:
                    live += change
                    at = start if change > 0 else end
                    counter = {"name": f"live activations of rank {rank}", "ph": "C", "ts": at * 1e6, "pid": 0}
                    events.append({**counter, "args": {"activations": live}})
        for rank, others in enumerate(self.collectives):
            for each in others:
                span = {"ph": "X", "ts": each.start * 1e6, "dur": (each.end - each.start) * 1e6, "pid": 0, "tid": rank}
                events.append({"name": f"{each.kind} stage {each.stage}", **span, "args": {"stage": each.stage}})
        Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def simulate_schedule(schedule: TaskSchedule, times: TaskTimes) -> Simulation:
    """Predict when each task of a schedule runs.

    A rank runs its tasks in order. A task starts when the rank is free and its operands have arrived. Transfers run
    beside the tasks, and do not delay each other.

    Args:
        schedule: the schedule.
        times: the times of tasks and transfers.

    Returns:
        The spans of all tasks, the total time, and the idle time of each rank.

    Raises:
        StrategyError: if the ranks deadlock.

    Example:
        >>> schedule = jax.parallel.task_schedule("1f1b", ranks=4, microbatches=8)
        >>> jax.parallel.simulate_schedule(schedule, jax.parallel.TaskTimes()).idle
        (9.0, 9.0, 9.0, 9.0)
    """
    ends: dict[Task, float] = {}
    spans: list[list[tuple[float, float]]] = [[] for _ in schedule.ranks]
    collectives: list[list[CollectiveSpan]] = [[] for _ in schedule.ranks]
    free = [0.0] * len(schedule.ranks)
    finished: dict[tuple[int, int], int] = {}  # microbatches, by stage and rank
    waiting = set(range(len(schedule.ranks)))

    def collect(kind: str, stage: int, rank: int, seconds: float) -> None:
        """Let a rank gather or reduce."""
        if seconds:
            collectives[rank].append(CollectiveSpan(kind, stage, free[rank], free[rank] + seconds))
            free[rank] += seconds

    while waiting:
        before = len(ends)
        for rank in sorted(waiting):
            tasks, done = schedule.ranks[rank], spans[rank]
            while len(done) < len(tasks):
                task = tasks[len(done)]
                arrivals = [_arrival(schedule, rank, each, ends, times) for each in task.dependencies(schedule.stages)]
                if any(arrival is None for arrival in arrivals):
                    break
                replica = task.stage, rank
                if replica not in finished:
                    finished[replica] = 0
                    collect(GATHER, task.stage, rank, _at(times.gather, task.stage))
                start = max([free[rank], *(arrival for arrival in arrivals if arrival is not None)])
                ends[task] = free[rank] = start + times.of(task)
                done.append((start, ends[task]))
                finished[replica] += task.ends_activations
                if task.ends_activations and finished[replica] == schedule.microbatches_of[replica]:
                    collect(REDUCE, task.stage, rank, _at(times.reduce, task.stage))
            else:
                waiting.discard(rank)
        if waiting and len(ends) == before:
            raise StrategyError(f"pipeline schedule {schedule.name!r}: the ranks {sorted(waiting)} deadlock")
    return Simulation(schedule, tuple(map(tuple, spans)), tuple(map(tuple, collectives)))


def _arrival(
    schedule: TaskSchedule, rank: int, alternatives: tuple[Task, ...], ends: dict[Task, float], times: TaskTimes
) -> float | None:
    """Return when the result of a task is available on a rank; None if the task has not run yet."""
    for task in alternatives:
        if task in ends:
            source = schedule.rank_of[task.stage, task.microbatch]
            return ends[task] + (times.transfer if source != rank else 0.0)
    return None
