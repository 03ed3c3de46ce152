"""list_schedule: order the tasks of ranks greedily, by simulating them with given times.

Whenever a rank is free, it runs the most urgent task whose operands have arrived: an input gradient, for which other
ranks wait; else a forward pass, if the rank may hold its activations; else a weight gradient, which no rank waits for.
Weight gradients thus fill the time in which a rank would wait for others. They also free activations.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.simulate import TaskTimes
from shardwise.parallel.mpmd.task import FORWARD, INPUT, WEIGHT, Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule


@final
@dataclass(frozen=True)
class Slots:
    """A bound on the live activations of some stages on one rank.

    Attributes:
        stages: the stages on the rank that share the slots, in ascending order. A microbatch passes through all of
            them.
        count: the number of slots.
    """

    stages: tuple[int, ...]
    count: int


@final
@dataclass(frozen=True)
class _Rule:
    """A variant of the greedy rule. Which one is fastest depends on the times.

    Attributes:
        order: which tasks come first if several can start: "oldest" or "deepest" for the input gradient of the oldest
            microbatch or of the last stage, "forward" for forward passes.
        patience: the share of a weight gradient's time that a rank waits for a more urgent task.
        reserves: whether a microbatch that enters a rank reserves slots for all stages there. Otherwise it leaves one
            slot free, which can deadlock.
    """

    order: str
    patience: float
    reserves: bool

    def urgency(self, task: Task) -> tuple[int, int, int]:
        """Return the sort key of tasks that can start at the same time; the lowest runs first."""
        if task.kind == FORWARD:
            return (0 if self.order == "forward" else 2, -task.stage, task.microbatch)
        if task.kind == INPUT and self.order == "deepest":
            return (1, -task.stage, task.microbatch)
        return (1 if task.kind == INPUT else 3, task.microbatch, task.stage)


_RULES = tuple(
    itertools.starmap(_Rule, itertools.product(("oldest", "forward", "deepest"), (0.0, 0.25, 0.5, 1.0), (True, False)))
)


@final
@dataclass
class _Rank:
    """The state of a rank while its tasks are ordered."""

    slots: Sequence[Slots]
    rule: _Rule
    times: TaskTimes
    free: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    candidates: dict[Task, float] = field(default_factory=dict)  # tasks whose operands arrive at a known time
    used: dict[Slots, int] = field(default_factory=dict)  # slots of live activations, and reserved ones

    def slots_of(self, stage: int) -> Slots:
        return next(slots for slots in self.slots if stage in slots.stages)

    def admits(self, task: Task) -> bool:
        """Return whether there is a slot for the activations of a forward pass."""
        slots = self.slots_of(task.stage)
        used, is_first, several = self.used.get(slots, 0), task.stage == slots.stages[0], len(slots.stages) > 1
        if self.rule.reserves:
            return not is_first or used + len(slots.stages) <= slots.count
        return used + (2 if is_first and several else 1) <= slots.count

    def run(self, task: Task, start: float) -> float:
        """Append a task, and return its end."""
        del self.candidates[task]
        self.tasks.append(task)
        self.free = start + self.times.of(task)
        slots = self.slots_of(task.stage)
        if task.kind == FORWARD:
            is_first = task.stage == slots.stages[0]
            added = (len(slots.stages) if is_first else 0) if self.rule.reserves else 1
            self.used[slots] = self.used.get(slots, 0) + added
        elif task.kind == WEIGHT:
            self.used[slots] -= 1
        return self.free

    def next_task(self) -> tuple[float, Task] | None:
        """Return the start and the task to run next; None if no operands are known to arrive."""
        starts = {
            task: max(self.free, arrival)
            for task, arrival in self.candidates.items()
            if task.kind != FORWARD or self.admits(task)
        }
        if not starts:
            return None
        first = min(starts.values())
        weights = [self.times.of(task) for task in starts if task.kind == WEIGHT]
        deadline = first + self.rule.patience * max(weights, default=0.0)
        urgent = {task: start for task, start in starts.items() if task.kind != WEIGHT and start <= deadline}
        if urgent:
            starts, first = urgent, min(urgent.values())
        return first, min((task for task, start in starts.items() if start == first), key=self.rule.urgency)


def list_schedule(
    name: str,
    slots: Sequence[Sequence[Slots]],
    microbatches: int,
    rank_of: Callable[[int, int], int],
    times: TaskTimes,
) -> TaskSchedule:
    """Return the fastest of some greedy schedules with separate input and weight gradients.

    Args:
        name: the name of the schedule.
        slots: for each rank, the bounds of its live activations.
        microbatches: the number of microbatches.
        rank_of: the rank of a stage and a microbatch.
        times: the times of tasks and transfers.

    Raises:
        StrategyError: if the bounds are too small for every variant of the rule.
    """
    shared = any(len(group.stages) > 1 for groups in slots for group in groups)
    rules = [rule for rule in _RULES if shared or rule.reserves]
    results = [result for rule in rules if (result := _order(slots, microbatches, rank_of, times, rule))]
    if not results:
        raise StrategyError(f"pipeline schedule {name!r}: the bounds of live activations are too small: {slots}")
    _, rows = min(results, key=lambda result: result[0])
    stages = 1 + max(task.stage for tasks in rows for task in tasks)
    return TaskSchedule(name, stages, microbatches, tuple(map(tuple, rows)))


def _order(
    slots: Sequence[Sequence[Slots]],
    microbatches: int,
    rank_of: Callable[[int, int], int],
    times: TaskTimes,
    rule: _Rule,
) -> tuple[float, list[list[Task]]] | None:
    """Return the total time and the tasks of each rank; None if the ranks deadlock."""
    ranks = [_Rank(groups, rule, times) for groups in slots]
    stages = 1 + max(stage for groups in slots for group in groups for stage in group.stages)
    choices: dict[int, tuple[float, Task] | None] = {}

    def add(task: Task, source: int, end: float) -> None:
        """Make a task a candidate of its rank. `end` is the time at which its last operand is ready on `source`."""
        rank = rank_of(task.stage, task.microbatch)
        ranks[rank].candidates[task] = end + (times.transfer if rank != source else 0.0)
        choices[rank] = ranks[rank].next_task()

    # Of the microbatches that enter the pipeline on a rank, only the next one is a candidate.
    entries: dict[int, Iterator[int]] = {}
    for rank in {rank_of(0, microbatch) for microbatch in range(microbatches)}:
        entries[rank] = iter([index for index in range(microbatches) if rank_of(0, index) == rank])
        add(Task(FORWARD, 0, next(entries[rank])), rank, 0.0)
    for _ in range(3 * stages * microbatches):
        # No task of another rank starts earlier than the first one, so no operand can arrive earlier.
        first = min(((*choice, rank) for rank, choice in choices.items() if choice), key=_start, default=None)
        if first is None:
            return None
        start, task, index = first
        end = ranks[index].run(task, start)
        if task.kind == FORWARD:
            if task.stage == 0 and (entry := next(entries[index], None)) is not None:
                add(Task(FORWARD, 0, entry), index, 0.0)
            last = task.stage == stages - 1
            add(Task(INPUT if last else FORWARD, task.stage + (not last), task.microbatch), index, end)
        elif task.kind == INPUT:
            add(Task(WEIGHT, task.stage, task.microbatch), index, end)
            if task.stage > 0:
                add(Task(INPUT, task.stage - 1, task.microbatch), index, end)
        choices[index] = ranks[index].next_task()
    return max(rank.free for rank in ranks), [rank.tasks for rank in ranks]


def _start(choice: tuple[float, Task, int]) -> float:
    return choice[0]
