"""ProcessSet: waits for runs of several processes, with values and a connection that are simulated here."""

import gc
import threading

import pytest

from shardwise.errors import PeerFailure, ProgramMismatch
from shardwise.processes.protocol import CallbackResult
from shardwise.processes.stragglers import PaceMeter
from shardwise.runtime import process_set
from shardwise.runtime.process_set import CollectiveRuns, ProcessSet, Waiters

WAIT = 300  # seconds; no test waits so long if it passes


class Member:
    """The connection of this process, which is process 0."""

    rank, step, is_closed, record = 0, None, False, None

    def __init__(self):
        self.failures, self.mismatches, self.pace = {}, {}, PaceMeter()
        self.messages = []
        self.slowest = None  # the launches of the slowest process; None if it has made as many

    def compare(self, comparison, ranks, timeout):
        self.messages.append("comparison")
        return True

    def confirm(self, processes, launch, rolling_hash, ranks, timeout):
        self.messages.append(("confirm", launch))
        return launch if self.slowest is None else min(launch, self.slowest)

    def send_progress(self):
        self.messages.append("progress")

    def exchange_callbacks(self, processes, launch, error, ranks, timeout):
        return CallbackResult(processes, launch, -1, None, "", "")

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


class Token:
    """A token of a run: it cannot be polled."""

    def __init__(self, value):
        self.block_until_ready = value.block_until_ready


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


def test_launches_need_no_round_trip_until_a_value_is_read():
    member = Member()
    own = processes(member)
    step = own.guard(lambda buffers: buffers, "step", "module {}", True)
    for _ in range(10 * process_set.REPORT_INTERVAL):
        step([])
    assert member.messages == ["comparison", *["progress"] * 10]
    member.messages.clear()
    for _ in range(3):  # later reads need none, until the next launch
        own.confirm()
    assert member.messages == [("confirm", 640)]
    step([])
    own.confirm()
    assert member.messages[1:] == [("confirm", 641)]


def test_launches_that_another_process_makes_later_are_confirmed_later():
    member = Member()
    own = processes(member)
    step = own.guard(lambda buffers: buffers, "step", "module {}", True)
    step([])
    step([])
    member.messages.clear()
    member.slowest = 1
    own.confirm()
    assert not own.is_confirmed
    member.slowest = 2
    own.confirm()
    assert own.is_confirmed
    own.confirm()
    assert member.messages == [("confirm", 2)] * 2


def test_the_sets_that_operands_come_from_are_confirmed_too():
    member = Member()
    own, source = processes(member), processes(member)
    source.guard(lambda buffers: buffers, "step", "module {}", True)([])
    own.add_source(source)
    source.add_source(own)  # a cycle
    assert not own.is_confirmed
    member.messages.clear()
    own.confirm()
    assert member.messages == [("confirm", 1)]
    assert own.is_confirmed


def test_programs_with_callbacks_are_compared_before_every_launch():
    member = Member()
    step = processes(member).guard(lambda buffers: buffers, "step", "module {}", True, callback_error=lambda: None)
    for _ in range(3):
        step([])
    assert member.messages == ["comparison"] * 3


@pytest.mark.parametrize("polls", [0, 1, 40])
def test_a_value_is_polled_until_it_is_ready(polls):
    waiters, value = CountingWaiters(), Value(polls)
    processes(waiters=waiters).wait(value, str)
    assert (waiters.waits, value.asked) == (0, polls + 1)


def test_a_value_that_takes_long_is_polled_seldom():
    value = Value()
    threading.Timer(0.5, value.set.set).start()
    waiting = processes()
    waiting.wait(value, str)
    assert value.asked < 400  # 2 ms are between two polls at the end
    assert waiting._member.pace.waited_seconds > 0  # by which the paces of processes differ


def test_a_token_is_awaited_by_another_thread():
    token = Value()
    waiters = CountingWaiters(token.set.set)
    processes(waiters=waiters).wait_for_token(Token(token))
    assert (waiters.waits, token.asked) == (1, 0)


@pytest.mark.parametrize("has_polls", [True, False])
def test_a_failure_ends_the_wait(has_polls):
    member, value = Member(), Value()

    def fail():
        member.failures[1] = "it was killed"
        waiters.wake_all()

    waiters = CountingWaiters(fail)
    threading.Timer(0.05, fail).start()
    with pytest.raises(PeerFailure, match="it was killed"):
        processes(member, waiters).wait(value if has_polls else Token(value), str)
    assert not waiters.drain(0.05)  # the run has not ended
    value.set.set()
    assert waiters.drain(WAIT)


def test_a_different_program_ends_the_wait():
    member, value = Member(), Value()
    threading.Timer(0.05, lambda: member.mismatches.update({"0,1": "launch 3 differs"})).start()
    with pytest.raises(ProgramMismatch, match="launch 3 differs"):
        processes(member).wait(value, str)
    value.set.set()


def test_a_value_may_become_ready_shortly_after_a_failure():
    member, value = Member(), Value(polls=5)
    member.failures[1] = "it was killed"
    processes(member).wait(value, str)


def test_a_failure_of_another_set_ends_no_wait():
    member, value = Member(), Value()
    member.failures[5] = "it was killed"
    threading.Timer(0.3, value.set.set).start()
    processes(member).wait(value, str)


@pytest.mark.parametrize("has_polls", [True, False])
def test_a_wait_that_takes_too_long_asks_for_the_culprit(has_polls):
    value = Value()
    with pytest.raises(PeerFailure, match=r"waited 0 s for this f32\[8\]") as caught:
        processes(timeout=0.1).wait(value if has_polls else Token(value), lambda: "this f32[8]")
    assert (caught.value.rank, caught.value.step) == (1, 7)
    value.set.set()


def test_nothing_is_awaited_when_the_runs_with_collectives_have_ended():
    value, run = Value(polls=1), Value(polls=1)
    one = processes(results=[run])
    one.wait(value, str)  # the run is active
    assert (value.asked, run.asked) == (2, 1)
    other = Value()
    for _ in range(3):
        one.wait(other, str)
    assert (other.asked, run.asked) == (0, 2)


@pytest.mark.parametrize("count", [1, process_set.REPORT_INTERVAL, 5 * process_set.REPORT_INTERVAL + 7])
def test_launches_are_counted_and_hashed_in_order(count):
    member = Member()
    member.sent = 0
    one = processes(member)

    def send_progress():
        member.sent += 1
        assert one.progress()[0] % process_set.REPORT_INTERVAL == 0

    member.send_progress = send_progress
    launch = {name: one.guard(lambda buffers: buffers, name, f"text of {name}", False) for name in "fg"}
    programs = {name: process_set._Program(name, f"text of {name}") for name in "fg"}
    one.programs.update({program.fingerprint: program for program in programs.values()})
    names = ["g" if number % 3 else "f" for number in range(count)]
    rolling = 0
    for name in names:
        assert launch[name]([name]) == [name]
        rolling = (rolling * 0x9E3779B97F4A7C15 + programs[name].fingerprint) % 2**64
    assert one.progress() == [count, rolling, 0]
    assert member.sent == count // process_set.REPORT_INTERVAL
    expected = {number: programs[name].fingerprint for number, name in enumerate(names, 1)}
    launched = one.launched()
    assert launched == {number: expected[number] for number in launched}
    assert set(range(max(1, count - 255), count + 1)) <= launched.keys()


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


def test_the_end_of_a_run_with_a_small_result_is_known():
    """Although the program has dropped it."""

    class Result:
        buffers = Value(polls=1)

    runs = CollectiveRuns()
    runs.add("0,1", [Value(), Result()], small=1)
    gc.collect()
    assert [runs.have_ended() for _ in range(3)] == [False, True, True]
    assert Result.buffers.asked == 2


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
