"""GPipe, 1F1B, interleaved 1F1B and ZB-H1: schedules whose order does not depend on the times of tasks."""

from collections.abc import Sequence

from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, WEIGHT, Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule


def gpipe(ranks: int, microbatches: int) -> TaskSchedule:
    """Return the schedule that runs all forward passes before the first backward pass."""
    rows = [
        [Task(FORWARD, rank, index) for index in range(microbatches)]
        + [Task(BACKWARD, rank, index) for index in reversed(range(microbatches))]
        for rank in range(ranks)
    ]
    return _schedule("gpipe", ranks, microbatches, rows)


def one_forward_one_backward(ranks: int, microbatches: int) -> TaskSchedule:
    """Return the schedule in which each rank alternates between forward and backward passes after a warmup."""
    rows = [
        _alternate(
            [Task(FORWARD, rank, index) for index in range(microbatches)],
            [Task(BACKWARD, rank, index) for index in range(microbatches)],
            ranks - 1 - rank,
        )
        for rank in range(ranks)
    ]
    return _schedule("1f1b", ranks, microbatches, rows)


def interleaved(ranks: int, microbatches: int, chunks: int) -> TaskSchedule:
    """Return 1F1B with `chunks` stages per rank: stage `s` is on rank `s % ranks`.

    Microbatches pass through the chunks of a rank in groups of `ranks`, which must divide `microbatches`.
    """
    rows = []
    for rank in range(ranks):
        order = [
            (chunk * ranks + rank, first + index)
            for first in range(0, microbatches, ranks)
            for chunk in range(chunks)
            for index in range(ranks)
        ]
        reverse = [(ranks * chunks - 1 - (stage - rank) - (ranks - 1 - rank), index) for stage, index in order]
        rows.append(
            _alternate(
                [Task(FORWARD, stage, index) for stage, index in order],
                [Task(BACKWARD, stage, index) for stage, index in reverse],
                2 * (ranks - 1 - rank) + (chunks - 1) * ranks,
            )
        )
    return _schedule("interleaved", ranks * chunks, microbatches, rows)


def zero_bubble_h1(ranks: int, microbatches: int) -> TaskSchedule:
    """Return 1F1B with separate input and weight gradients (ZB-H1).

    Rank `r` runs the weight gradient of a microbatch `r` microbatches after its input gradient. So the input gradient
    reaches the previous rank earlier, and no rank holds more activations than rank 0 does in 1F1B.
    """
    rows = []
    for rank in range(ranks):
        tasks = [Task(FORWARD, rank, index) for index in range(min(ranks - rank, microbatches))]
        for index in range(microbatches):
            tasks.append(Task(INPUT, rank, index))
            if index >= rank:
                tasks.append(Task(WEIGHT, rank, index - rank))
            if index + ranks - rank < microbatches:
                tasks.append(Task(FORWARD, rank, index + ranks - rank))
        tasks += [Task(WEIGHT, rank, index) for index in range(max(0, microbatches - rank), microbatches)]
        rows.append(tasks)
    return _schedule("zb-h1", ranks, microbatches, rows)


def _alternate(forward: Sequence[Task], backward: Sequence[Task], warmup: int) -> list[Task]:
    """Return `warmup` forward tasks, then one forward and one backward task in turn, then the other backward tasks."""
    warmup = min(warmup, len(forward))
    tasks = list(forward[:warmup])
    for index, task in enumerate(forward[warmup:]):
        tasks += [task, backward[index]]
    return tasks + list(backward[len(forward) - warmup :])


def _schedule(name: str, stages: int, microbatches: int, rows: Sequence[Sequence[Task]]) -> TaskSchedule:
    return TaskSchedule(name, stages, microbatches, tuple(map(tuple, rows)))
