"""Failures that the coordinator notices and passes on. Members are threads here, on real sockets."""

import threading
import time

import pytest

from shardwise.errors import ProgramMismatch
from shardwise.processes import coordinator as coordinator_module
from shardwise.processes.member import main_stack
from shardwise.processes.protocol import Comparison
from tests.processes.members import WAIT, coordinator, join, leave_all, wait_until

pytestmark = pytest.mark.faults


def close_all(members):
    for member in members:
        member.close()


def test_a_lost_process_is_known_to_all_others():
    with coordinator(3) as server:
        first, second, third = join(server, range(3), num_processes=3)
        second.report_step(7)
        wait_until(lambda: server.steps()[1] == 7)
        second.close()
        for member in (first, third):
            wait_until(lambda member=member: member.failures)
            error = member.error("0,1,2", {0, 1, 2})
            assert (error.rank, error.step) == (1, 7)
            assert "process 1 failed after step 7: its connection closed" in str(error)
            assert member.error("0,2", {0, 2}) is None  # a smaller mesh works on
        assert [(event.rank, event.step) for event in server.events if event.kind == "failed"] == [(1, 7)]
        assert first.leave(WAIT)  # without waiting for the others
        close_all([first, third])
        assert server.wait(WAIT)


def test_a_silent_process_is_lost_after_the_heartbeat_timeout(monkeypatch):
    with coordinator(2, heartbeat_timeout=1.5) as server:
        first, second = join(server, range(2))
        monkeypatch.setattr(second, "_send", lambda message: None)
        wait_until(lambda: first.failures)
        assert "no heartbeat for" in str(first.error("0,1", {0, 1}))
        close_all([first, second])
        assert server.wait(WAIT)


def test_an_exception_is_passed_on_with_its_traceback():
    with coordinator(2) as server:
        first, second = join(server, range(2))
        try:
            raise KeyError("missing")
        except KeyError as error:
            second.report_exception(error)
        wait_until(lambda: first.failures)
        error = first.error("0,1", {0, 1})
        assert error.reason == "it raised KeyError: 'missing'"
        assert 'raise KeyError("missing")' in error.detail
        close_all([first, second])


def test_the_process_with_fewer_launches_is_blamed_and_shows_its_stack():
    with coordinator(3) as server:
        members = join(server, range(3), num_processes=3)
        for member, count in zip(members, (9, 8, 9), strict=True):
            member.launches = lambda count=count: {"0,1,2": [count, count, 2]}
            member.send_progress()
        members[1].answers["stack"] = lambda _: "  File 'train.py', line 3, in load\n"
        error = members[0].ask_for_failure("0,1,2", "waited 60 s for this f32[8]")
        assert error.rank == 1
        assert error.reason.startswith("process 0 waited 60 s for this f32[8]; it is alive, but has made 8 launches")
        assert "Last steps: process 0: None, process 1: None, process 2: None" in error.reason
        assert str(error).endswith("in load")
        wait_until(lambda: members[2].failures)
        close_all(members)


def test_a_process_that_does_not_answer_is_blamed():
    with coordinator(2) as server:
        first, second = join(server, range(2))
        released = threading.Event()
        second.answers["stack"] = lambda _: released.wait(WAIT) and ""
        error = first.ask_for_failure("0,1", "waited 1 s")
        assert error.rank == 1
        assert "it does not answer" in error.reason
        released.set()
        close_all([first, second])


def test_a_lost_connection_waits_for_the_news_of_a_death(monkeypatch):
    monkeypatch.setattr(coordinator_module, "ANSWER_TIME", 5)
    with coordinator(3) as server:
        first, second, third = join(server, range(3), num_processes=3)
        second.launches = lambda: {"0,1,2": [1, 1, 1]}  # alive, but slow
        first.launches = lambda: {"0,1,2": [2, 2, 1]}
        threading.Timer(0.5, third.close).start()
        error = first.ask_for_failure("0,1,2", "lost a connection", lost=True)
        assert error.rank == 2
        close_all([first, second])


def test_nobody_is_blamed_if_all_are_alive_and_equal():
    with coordinator(2) as server:
        first, second = join(server, range(2))
        error = first.ask_for_failure("0,1", "waited 1 s")
        assert error.rank == -1
        assert "all processes are alive, and have made the same launches" in str(error)
        assert not server.failures
        leave_all([first, second])


def test_a_comparison_ends_when_a_process_fails():
    with coordinator(2) as server:
        first, second = join(server, range(2))
        threading.Timer(0.3, second.close).start()
        start = time.monotonic()
        assert not first.compare(Comparison("0,1", 1, 0, 0, 7, "f"), {0, 1}, WAIT)
        assert time.monotonic() - start < WAIT / 2
        assert first.error("0,1", {0, 1}).rank == 1
        first.close()


def test_a_process_that_ends_too_early_is_reported():
    with coordinator(2) as server:
        first, second = join(server, range(2))
        second.launches = lambda: {"0,1": [3, 3, 1]}
        first.launches = lambda: {"0,1": [4, 4, 1]}

        def leave():
            with pytest.raises(ProgramMismatch, match="process 1 failed: it reached the end of its program"):
                second.leave(WAIT)

        waiting = threading.Thread(target=leave)
        waiting.start()
        first.send_progress()
        wait_until(lambda: first.failures)
        assert "it reached the end of its program after 3 launches on the processes 0,1, but process 0 made 4" in str(
            first.error("0,1", {0, 1})
        )
        waiting.join(WAIT)
        assert not waiting.is_alive()
        close_all([first, second])


def test_survivors_that_launched_different_numbers_before_a_failure_may_leave():
    with coordinator(3) as server:
        first, second, third = join(server, range(3), num_processes=3)
        first.launches = lambda: {"0,1,2": [4, 4, 1]}
        third.launches = lambda: {"0,1,2": [3, 3, 1]}
        second.close()
        wait_until(lambda: first.failures and third.failures)
        third.leave(WAIT)
        first.send_progress()
        leave_all([first])
        third.close()
        assert list(server.failures) == [1]


def test_the_end_of_the_coordinator_ends_every_wait():
    with coordinator(2) as server:
        first, second = join(server, range(2))
        stopper = threading.Timer(0.3, server.stop)
        stopper.start()
        assert not first.compare(Comparison("0,1", 1, 0, 0, 7, "f"), {0, 1}, WAIT)
        assert first.is_closed
        stopper.join()
        close_all([first, second])


def test_the_stack_is_that_of_the_main_thread():
    stacks = []

    def read():
        stacks.append(main_stack())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "test_the_stack_is_that_of_the_main_thread" in stacks[0]
