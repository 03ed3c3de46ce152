"""ProcessSet: waits for runs of several processes, with values and a connection that are simulated here."""

import gc
import threading

import pytest

from shardwise.errors import PeerFailure, ProgramMismatch
from shardwise.runtime import process_set
from shardwise.runtime.process_set import CollectiveRuns, ProcessSet, Waiters

WAIT = 300  # seconds; no test waits so long if it passes


class Member:
    """The connection of this process, which is process 0."""

    rank, step, is_closed = 0, None, False

    def __init__(self):
        self.failures, self.mismatches = {}, {}

    def error(self, processes, ranks):
        if processes in self.mismatches:
            return ProgramMismatch(self.mismatches[processes])
        return next((PeerFailure(rank, None, reason) for rank, reason in self.failures.items() if rank in ranks), None)

    def ask_for_failure(self, processes, reason, lost=False):
        return PeerFailure(1, 7, reason)


class Value:
    """A value that becomes ready after some polls, or when it is set."""

    def __init__(self, polls=None):
        self.polls = polls
        self.asked = 0
        self.set = threading.Event()

    def is_ready(self):
        self.asked += 1
        return self.set.is_set() or (self.polls is not None and self.asked > self.polls)

    def is_deleted(self):
        return False

    def block_until_ready(self):
        assert self.set.wait(WAIT)


class CountingWaiters(Waiters):
    """Waiters that count the waits that another thread does, and may let something happen then."""

    def __init__(self, then=lambda: None):
        super().__init__()
        self.waits, self.then = 0, then

    def wait(self, awaited, has_failed, timeout):
        self.waits += 1
        threading.Timer(0.05, self.then).start()
        return super().wait(awaited, has_failed, timeout)


RUNNING = Value()  # the result of a run that waits for another process


def processes(member=None, waiters=None, timeout=WAIT, results=(RUNNING,), runs=None):
    """Return a set of processes after a run with collectives that has these results."""
    runs = runs or CollectiveRuns()
    runs.add("0,1", results)
    return ProcessSet((0, 1), member or Member(), waiters or CountingWaiters(), runs, timeout)


def test_a_value_that_is_ready_soon_is_awaited_without_another_thread():
    waiters = CountingWaiters()
    for polls in (0, 1, process_set._POLLS - 1):
        processes(waiters=waiters).wait(Value(polls), str)
    assert waiters.waits == 0


def test_another_value_is_awaited_by_another_thread():
    value = Value()
    waiters = CountingWaiters(value.set.set)
    processes(waiters=waiters).wait(value, str)
    assert (waiters.waits, value.asked) == (1, process_set._POLLS)


def test_a_token_is_awaited_by_another_thread():
    token = Value()
    waiters = CountingWaiters(token.set.set)

    class Token:
        block_until_ready = token.block_until_ready

    processes(waiters=waiters).wait_for_token(Token())
    assert (waiters.waits, token.asked) == (1, 0)


def test_a_failure_ends_the_wait():
    member, value = Member(), Value()

    def fail():
        member.failures[1] = "it was killed"
        waiters.wake_all()

    waiters = CountingWaiters(fail)
    with pytest.raises(PeerFailure, match="it was killed"):
        processes(member, waiters).wait(value, str)
    value.set.set()


def test_a_failure_of_another_set_ends_no_wait():
    member, value = Member(), Value()
    member.failures[5] = "it was killed"
    waiters = CountingWaiters(value.set.set)
    processes(member, waiters).wait(value, str)
    assert waiters.waits == 1


def test_a_wait_that_takes_too_long_asks_for_the_culprit():
    value = Value()
    with pytest.raises(PeerFailure, match=r"waited 0 s for this f32\[8\]") as caught:
        processes(timeout=0.1).wait(value, lambda: "this f32[8]")
    assert (caught.value.rank, caught.value.step) == (1, 7)
    value.set.set()


def test_no_thread_waits_when_the_runs_with_collectives_have_ended():
    waiters, value, run = CountingWaiters(), Value(), Value(polls=1)
    one = processes(waiters=waiters, results=[run])
    waiters.then = value.set.set
    one.wait(value, str)  # the run is active
    assert (waiters.waits, run.asked) == (1, 1)
    for _ in range(3):
        one.wait(Value(), str)
    assert (waiters.waits, run.asked) == (1, 2)


class Donated(Value):
    def is_deleted(self):
        return True


@pytest.mark.parametrize("kind", ["no results", "dropped", "donated"])
def test_a_run_whose_end_is_unknown_counts_as_active(kind):
    results = {"no results": [], "dropped": [Value(polls=0)], "donated": [Donated(polls=0)]}[kind]
    runs = CollectiveRuns()
    runs.add("0,1", results)
    if kind == "dropped":
        results.clear()
        gc.collect()
    assert not runs.have_ended()


def test_any_set_may_have_an_active_run():
    """A value of one set may depend on a run of another one."""
    runs, ended, active = CollectiveRuns(), Value(polls=0), Value()
    assert runs.have_ended()
    runs.add("0,1", [ended])
    assert runs.have_ended()
    runs.add("0,2", [active])
    assert not runs.have_ended()
    active.set.set()
    assert runs.have_ended()
    runs.add("0,1", [RUNNING])
    assert not runs.have_ended()
