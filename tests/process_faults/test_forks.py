"""Children that a process forks do not speak for it: neither their ends nor their errors reach the other processes."""

from contextlib import contextmanager

import pytest

from tests.process_faults.groups import Worker, free_port

pytestmark = pytest.mark.faults

STATUSES = {"exit": 4, "_exit": 5, "exception": 1, "multiprocessing": 3, "subprocess": 2}


@contextmanager
def processes(child):
    """Run `fork_worker.py` in two processes."""
    port = free_port()
    program = "tests/process_faults/fork_worker.py"
    workers = [Worker([program, child, str(rank), "2", str(port)], {}) for rank in range(2)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "child", ["exit", *(pytest.param(child, marks=pytest.mark.slow) for child in STATUSES if child != "exit")]
)
def test_the_end_of_a_forked_child_is_not_the_end_of_its_parent(child):
    with processes(child) as workers:
        for worker in workers:
            end = worker.event("end")
            assert end["values"] == [28]
            assert end["status"] == STATUSES[child]
            assert worker.wait() == 0, worker.errors


@pytest.mark.slow
def test_the_death_of_a_process_is_noticed_while_its_child_lives():
    with processes("die") as workers:
        assert workers[0].event("PeerFailure")["rank"] == 1
