"""Every wait for other processes ends when one of them dies, is stopped, or does not come; the error names it."""

import re
from contextlib import contextmanager

import pytest

from tests.process_faults.groups import WAIT, Worker, free_port

pytestmark = pytest.mark.faults

STUCK_TIME = 10  # seconds after which a process counts as stuck
LOST = "its connection closed: the process was killed, or it exited without distributed.shutdown"
WAITS = ["read", "launches", "comparison", "allgather", "barrier", "broadcast", "callback", "live devices", "shutdown"]
POINTS = ["before connect", "in connect", "before clients", "in clients"]  # of `initialize`, after the rendezvous


@contextmanager
def processes(wait, fault, count=2, victim=1, timeout=STUCK_TIME):
    """Run `wait_worker.py` in several processes. Return the survivors."""
    port = free_port()
    program = "tests/process_faults/wait_worker.py"
    workers = [
        Worker([program, wait, fault, *map(str, (rank, count, port, timeout, victim))], {}) for rank in range(count)
    ]
    try:
        yield [worker for rank, worker in enumerate(workers) if rank != victim or fault == "coordinator"]
    finally:
        for worker in workers:
            worker.close()


def cases(*arguments):
    """Mark all cases as slow but the first."""
    first, *others = arguments
    return [first, *(pytest.param(*each, marks=pytest.mark.slow) for each in others)]


@pytest.mark.slow
@pytest.mark.parametrize(("wait", "fault"), [(wait, fault) for wait in WAITS for fault in ("stop", "sleep")])
def test_a_wait_for_a_process_that_does_not_come_ends_with_its_rank(wait, fault):
    with processes(wait, fault) as (survivor,):
        failure = survivor.event("PeerFailure")
        assert failure["rank"] == 1
        assert re.search(rf"process 0 waited (more than )?{STUCK_TIME} s", failure["reason"])
        if fault == "sleep":
            assert "it is alive, but has " in failure["reason"]
            assert "time.sleep(1000)" in failure["detail"]
        else:
            assert "the process is stopped, or unreachable" in failure["reason"]
        assert survivor.event("alone")["sum"] == 6
        assert survivor.wait() == 0


@pytest.mark.slow
def test_of_several_processes_the_one_that_does_not_come_is_named():
    with processes("live devices", "sleep", count=3) as survivors:
        assert [survivor.event("PeerFailure")["rank"] for survivor in survivors] == [1, 1]


@pytest.mark.parametrize(
    ("point", "victim"), cases(("in clients", 1), *((point, v) for point in POINTS for v in (0, 1)))
)
def test_a_death_during_initialize_is_a_peer_failure_in_all_others(point, victim):
    with processes(point, "kill", count=3, victim=victim, timeout=WAIT) as survivors:
        for survivor in survivors:
            failure = survivor.event("PeerFailure")
            assert (failure["rank"], failure["reason"]) == (victim, LOST)
            assert survivor.event("alone")["sum"] == 6
            assert survivor.wait() == 0, survivor.errors


@pytest.mark.slow
@pytest.mark.parametrize(("point", "fault"), [("before connect", "exception"), ("before clients", "exit")])
def test_an_end_during_initialize_is_a_peer_failure_in_all_others(point, fault):
    with processes(point, fault, timeout=WAIT) as (survivor,):
        failure = survivor.event("PeerFailure")
        assert failure["rank"] == 1
        expected = {"exit": LOST, "exception": "it raised ZeroDivisionError: the exception of one process"}
        assert failure["reason"] == expected[fault]


# A process that sleeps in a thread beside XLA's calls looks like one that waits for the others.
STUCK = [*((point, "stop") for point in POINTS), ("before connect", "sleep"), ("before clients", "sleep")]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "fault"), STUCK)
def test_a_process_that_is_stuck_during_initialize_is_named(point, fault):
    with processes(point, fault) as (survivor,):
        failure = survivor.event("PeerFailure")
        assert failure["rank"] == 1
        assert f"process 0 waited {STUCK_TIME} s in distributed.initialize" in failure["reason"]


@pytest.mark.parametrize(
    "wait",
    ["sleep", *(pytest.param(wait, marks=pytest.mark.slow) for wait in ("comparison", "live devices", "shutdown"))],
)
def test_the_death_of_the_coordinator_is_an_exception_in_every_process(wait):
    """XLA's coordination service dies with it, for which XLA aborts every process that is connected directly."""
    with processes(wait, "coordinator", victim=0, timeout=WAIT) as workers:
        for worker in workers:
            if wait != "shutdown":
                failure = worker.event("PeerFailure")
                assert failure["rank"] == -1
                assert "the coordinator" in failure["reason"]
                assert worker.event("alone")["sum"] == 6
            assert worker.wait() == 0, worker.errors
