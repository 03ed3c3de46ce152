"""task_schedule: the orders of the schedules, and errors."""

import pytest

from shardwise.errors import StrategyError
from shardwise.parallel import check_schedule, task_schedule


def test_orders():
    def rows(name, ranks, microbatches, chunks=1):
        return str(task_schedule(name, ranks, microbatches, chunks)).splitlines()[1:-1]

    assert rows("gpipe", 2, 2) == ["rank 0  F0 F1 B1 B0", "rank 1  F0 F1 B1 B0"]
    assert rows("1f1b", 3, 4) == [
        "rank 0  F0 F1 F2 B0 F3 B1 B2 B3",
        "rank 1  F0 F1 B0 F2 B1 F3 B2 B3",
        "rank 2  F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert rows("interleaved", 2, 2, 2) == [
        "rank 0  F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1",
        "rank 1  F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1",
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_few_microbatches_and_odd_numbers(ranks, microbatches):
    for name in ("gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe"):
        check_schedule(task_schedule(name, ranks, microbatches))


def test_placement():
    assert task_schedule("zb-v", 2, 4).ranks_of_stage == ((0,), (1,), (1,), (0,))
    assert task_schedule("dualpipe", 3, 4).ranks_of_stage == ((0, 2), (1,), (0, 2))
    assert task_schedule("interleaved", 2, 4, 2).ranks_of_stage == ((0,), (1,), (0,), (1,))


def test_digest_depends_on_the_order_only():
    assert task_schedule("1f1b", 2, 4).digest == task_schedule("1f1b", 2, 4).digest
    digests = {task_schedule(name, 2, 4).digest for name in ("gpipe", "1f1b", "zb-h1", "dualpipe")}
    assert len(digests) == 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("2f2b", 2, 2), "unknown schedule '2f2b': use 'gpipe'"),
        (("1f1b", 0, 2), "ranks must be a positive integer, not 0"),
        (("1f1b", 2, True), "microbatches must be a positive integer, not True"),
        (("1f1b", 2, 2, 2), "use schedule='interleaved', or leave chunks out"),
        (("interleaved", 4, 6, 2), "does not divide 6 microbatches: use 8 microbatches"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(StrategyError, match=message):
        task_schedule(*arguments)
