"""check_schedule against exhaustive search: all interleavings of the ranks of small schedules, and of mutated ones."""

import random
from dataclasses import replace

import pytest

from shardwise.errors import StrategyError
from shardwise.parallel import Task, check_schedule, task_schedule
from shardwise.parallel.mpmd.make_schedule import TASK_SCHEDULES
from tests.parallel.mpmd.exhaustive import reachable_deadlocks


def small_schedules(most_ranks, most_microbatches):
    for name in TASK_SCHEDULES:
        for ranks in range(1, most_ranks + 1):
            for microbatches in range(1, most_microbatches + 1):
                if name == "interleaved" and microbatches % ranks:
                    continue
                yield task_schedule(name, ranks, microbatches, 2 if name == "interleaved" else 1)


def test_no_interleaving_of_ranks_deadlocks():
    count = 0
    for schedule in small_schedules(3, 4):
        check_schedule(schedule)
        states, stuck = reachable_deadlocks(schedule)
        assert not stuck, f"{schedule}\n{stuck}"
        count += states
    assert count > 4_000  # so the search has explored interleavings, not one order per schedule


def is_rejected(schedule):
    try:
        check_schedule(schedule)
    except StrategyError:
        return True
    return False


def mutations(schedule, seed, number):
    """Yield schedules with two tasks of a rank swapped, a task dropped, duplicated, or moved to another rank."""
    rng = random.Random(seed)
    for _ in range(number):
        rows = [list(tasks) for tasks in schedule.ranks]
        kind = rng.choice(("swap", "swap", "swap", "drop", "duplicate", "move"))
        rank = rng.randrange(len(rows))
        first, second = rng.randrange(len(rows[rank])), rng.randrange(len(rows[rank]))
        if kind == "swap":
            rows[rank][first], rows[rank][second] = rows[rank][second], rows[rank][first]
        elif kind == "drop":
            del rows[rank][first]
        elif kind == "duplicate":
            rows[rank].insert(second, rows[rank][first])
        else:
            rows[(rank + 1) % len(rows)].insert(0, rows[rank].pop(first))
        yield kind, replace(schedule, ranks=tuple(map(tuple, rows)))


def test_mutated_schedules_are_rejected_if_they_deadlock():
    rejected = accepted = 0
    for seed, schedule in enumerate(small_schedules(3, 3)):
        for kind, mutated in mutations(schedule, seed, 6):
            _, stuck = reachable_deadlocks(mutated)
            is_complete = sorted(task for row in mutated.ranks for task in row) == sorted(
                task for row in schedule.ranks for task in row
            )
            has_residuals = all(
                mutated.rank_of[task.stage, task.microbatch] == rank
                for rank, row in enumerate(mutated.ranks)
                for task in row
            )
            expected = bool(stuck) or not is_complete or not has_residuals
            assert is_rejected(mutated) == expected, f"{kind}\n{mutated}"
            rejected, accepted = rejected + expected, accepted + (not expected)
    assert rejected > 50 and accepted > 10


def test_messages_name_the_task():
    schedule = task_schedule("1f1b", 2, 2)
    first, second = schedule.ranks

    def message(*ranks, **bounds):
        with pytest.raises(StrategyError) as raised:
            check_schedule(replace(schedule, ranks=ranks), **bounds)
        return str(raised.value)

    assert "stage 0 and microbatch 1 have the tasks F" in message(first[:-1], second)
    assert "task F0.0 occurs 2 times" in message((first[0], *first), second)
    assert "rank 0 waits in B0.0 for F0.0" in message((first[2], first[0], first[1], first[3]), second)
    assert "B0.1 is on rank 1, but its stage and microbatch have residuals on rank 0" in message(
        first[:-1], (*second, first[-1])
    )
    assert "task F5.0 is not one of 2 stages" in message((Task("F", 5, 0), *first), second)
    assert "rank 0 has 2 live activations, more than the bound of 1" in message(first, second, max_activations=1)
