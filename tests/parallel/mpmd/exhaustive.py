"""Oracle of `check_schedule`: explore all interleavings of ranks, without assuming that the order does not matter."""

from shardwise.parallel.mpmd.task import Task


def needs(task, stages):
    """Return the tasks of which one each must be complete, written anew from the definition of a pipeline."""
    kind, stage, index = task.kind, task.stage, task.microbatch
    if kind == "F":
        return [[Task("F", stage - 1, index)]] if stage else []
    if kind == "W":
        return [[Task("I", stage, index)]]
    later = [[Task("I", stage + 1, index), Task("B", stage + 1, index)]] if stage < stages - 1 else []
    return [[Task("F", stage, index)], *later]


def reachable_deadlocks(schedule):
    """Return the number of reachable states, and the reachable states in which no rank can proceed.

    A state has the number of complete tasks of each rank. A schedule is correct if the only such state is the end.
    """
    start = (0,) * len(schedule.ranks)
    states, stack, stuck = {start}, [start], []
    while stack:
        state = stack.pop()
        done = {task for tasks, count in zip(schedule.ranks, state, strict=True) for task in tasks[:count]}
        moved = False
        for rank, (tasks, count) in enumerate(zip(schedule.ranks, state, strict=True)):
            if count == len(tasks):
                continue
            if all(any(each in done for each in alternatives) for alternatives in needs(tasks[count], schedule.stages)):
                moved = True
                successor = (*state[:rank], count + 1, *state[rank + 1 :])
                if successor not in states:
                    states.add(successor)
                    stack.append(successor)
        if not moved and any(count < len(tasks) for tasks, count in zip(schedule.ranks, state, strict=True)):
            stuck.append(state)
    return len(states), stuck
