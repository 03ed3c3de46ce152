"""TaskSchedule: the tasks of every pipeline rank in order, as plain data."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.parallel.mpmd.task import FORWARD, INPUT, WEIGHT, Task


@final
@dataclass(frozen=True)
class TaskSchedule:
    """The order in which each rank of a pipeline runs its tasks. `print(schedule)` lists them.

    Attributes:
        name: the name of the schedule.
        stages: the number of stages.
        microbatches: the number of microbatches.
        ranks: for each rank, its tasks in order.

    Example:
        >>> jax.parallel.task_schedule("1f1b", ranks=2, microbatches=2).ranks[1][0]
        Task(kind='F', stage=1, microbatch=0)
    """

    name: str
    stages: int
    microbatches: int
    ranks: tuple[tuple[Task, ...], ...]

    @cached_property
    def digest(self) -> str:
        """A hash of the tasks and their order, which processes compare."""
        rows = "\n".join(" ".join(map(str, tasks)) for tasks in self.ranks)
        return hashlib.sha256(f"{self.stages} {self.microbatches}\n{rows}".encode()).hexdigest()

    @cached_property
    def rank_of(self) -> dict[tuple[int, int], int]:
        """The rank that runs the tasks of each (stage, microbatch)."""
        return {(task.stage, task.microbatch): rank for rank, tasks in enumerate(self.ranks) for task in tasks}

    @cached_property
    def ranks_of_stage(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the ranks that run it, in ascending order."""
        pairs = {(stage, rank) for (stage, _), rank in self.rank_of.items()}
        return tuple(tuple(sorted(rank for other, rank in pairs if other == stage)) for stage in range(self.stages))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether backward passes are split into input and weight gradients."""
        return any(task.kind in (INPUT, WEIGHT) for tasks in self.ranks for task in tasks)

    @cached_property
    def microbatches_of(self) -> dict[tuple[int, int], int]:
        """The number of microbatches for which a rank runs a stage, by (stage, rank)."""
        return dict(Counter((stage, rank) for (stage, _), rank in self.rank_of.items()))

    @cached_property
    def peak_activations(self) -> tuple[int, ...]:
        """For each rank, the largest number of (stage, microbatch) pairs whose residuals it holds at once."""
        peaks = []
        for tasks in self.ranks:
            live = peak = 0
            for task in tasks:
                live += task.kind == FORWARD
                peak = max(peak, live)
                live -= task.ends_activations
            peaks.append(peak)
        return tuple(peaks)

    def __str__(self) -> str:
        """List the tasks of each rank, and its peak of live activations."""
        lines = [f"{self.name}: {len(self.ranks)} ranks, {self.stages} stages, {self.microbatches} microbatches"]
        show_stage = self.stages > len(self.ranks) or any(len(ranks) > 1 for ranks in self.ranks_of_stage)
        for rank, tasks in enumerate(self.ranks):
            cells = [str(task) if show_stage else f"{task.kind}{task.microbatch}" for task in tasks]
            lines.append(f"rank {rank:<2} {' '.join(cells)}")
        return "\n".join([*lines, f"live activations: {', '.join(map(str, self.peak_activations))}"])
