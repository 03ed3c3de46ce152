"""check_schedule: reject task schedules that would use undefined values, deadlock, or exceed a memory bound."""

from collections import Counter
from collections.abc import Iterator

from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, WEIGHT, Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule


def check_schedule(schedule: TaskSchedule, max_activations: int | None = None) -> None:
    """Check that a schedule computes all gradients, cannot deadlock, and respects a bound of live activations.

    Ranks send results asynchronously and never wait for a receiver. A rank waits only for the operands of its next
    task. So which tasks are complete does not depend on the speed of ranks, and running each rank as far as possible
    finds every deadlock.

    Args:
        schedule: the schedule.
        max_activations: the largest number of live activations on a rank; None for no bound.

    Raises:
        StrategyError: if a task is missing, duplicated, out of range or on another rank than its residuals; if a task
            waits for a task that comes later on its own rank; if ranks wait for each other; or if a rank exceeds the
            bound.

    Example:
        >>> jax.parallel.check_schedule(jax.parallel.task_schedule("1f1b", ranks=4, microbatches=8), max_activations=4)
    """
    problem = next(_problems(schedule), None) or _deadlock(schedule)
    if problem is None and max_activations is not None:
        rank, peak = max(enumerate(schedule.peak_activations), key=lambda pair: pair[1], default=(0, 0))
        if peak > max_activations:
            problem = f"rank {rank} has {peak} live activations, more than the bound of {max_activations}"
    if problem is not None:
        raise StrategyError(f"pipeline schedule {schedule.name!r}: {problem}")


def _problems(schedule: TaskSchedule) -> Iterator[str]:
    """Yield the tasks that are missing, duplicated or misplaced."""
    counts = Counter(task for tasks in schedule.ranks for task in tasks)
    for task, count in counts.items():
        if task.kind not in (FORWARD, INPUT, WEIGHT, BACKWARD):
            yield f"task {task} has the unknown kind {task.kind!r}"
        if not (0 <= task.stage < schedule.stages and 0 <= task.microbatch < schedule.microbatches):
            yield f"task {task} is not one of {schedule.stages} stages and {schedule.microbatches} microbatches"
        if count > 1:
            yield f"task {task} occurs {count} times"
    rank_of: dict[tuple[int, int], int] = {}
    for rank, tasks in enumerate(schedule.ranks):
        for task in tasks:
            first = rank_of.setdefault((task.stage, task.microbatch), rank)
            if first != rank:
                yield f"task {task} is on rank {rank}, but its stage and microbatch have residuals on rank {first}"
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            kinds = "".join(kind for kind in "FIWB" if Task(kind, stage, microbatch) in counts)  # type: ignore[arg-type]
            if kinds not in ("FB", "FIW"):
                yield (
                    f"stage {stage} and microbatch {microbatch} have the tasks {kinds or 'none'}: expected F and B, or "
                    "F, I and W"
                )


def _deadlock(schedule: TaskSchedule) -> str | None:
    """Run each rank as far as possible. Describe the tasks that remain; None if there are none."""
    done: set[Task] = set()
    positions = [0] * len(schedule.ranks)
    progress = True
    while progress:
        progress = False
        for rank, tasks in enumerate(schedule.ranks):
            while positions[rank] < len(tasks) and not _missing(tasks[positions[rank]], schedule.stages, done):
                done.add(tasks[positions[rank]])
                positions[rank] += 1
                progress = True
    waiting = [
        f"rank {rank} waits in {tasks[position]} for {_missing(tasks[position], schedule.stages, done)[0]}"
        for rank, (tasks, position) in enumerate(zip(schedule.ranks, positions, strict=True))
        if position < len(tasks)
    ]
    return f"the ranks deadlock: {'; '.join(waiting)}" if waiting else None


def _missing(task: Task, stages: int, done: set[Task]) -> list[Task]:
    """Return the dependencies of a task that are not complete."""
    return [tasks[0] for tasks in task.dependencies(stages) if done.isdisjoint(tasks)]
