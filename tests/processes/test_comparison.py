"""The coordinator's comparison of launches, with members that are simulated here."""

import json
import random

import pytest

from shardwise.processes.comparison import LaunchComparison, describe_difference, describe_order
from shardwise.processes.protocol import (
    CallbackResult,
    CallbacksEnded,
    Comparison,
    Confirm,
    Confirmed,
    Equal,
    Mismatch,
    Progress,
)
from shardwise.runtime import process_set
from shardwise.runtime.process_set import REPORT_INTERVAL, LaunchHistory


class Members:
    """Members that answer at once, and the messages that they get."""

    def __init__(self, **answers):
        self.received = []
        self.answers = answers  # by question: a function of rank and detail
        self.comparison = LaunchComparison(self.ask, lambda rank, message: self.received.append((rank, message)))

    def ask(self, rank, question, detail, then):
        then(self.answers[question](rank, detail))

    def compare(self, rank, fingerprint, number=1, launch=0, processes="0,1", rolling_hash=0):
        comparison = Comparison(processes, number, launch, rolling_hash, fingerprint, f"f{fingerprint}")
        self.comparison.receive_comparison(rank, comparison)

    def progress(self, rank, count, rolling_hash, processes="0,1", **arguments):
        self.comparison.receive_progress(
            rank, Progress(arguments.pop("step", None), {processes: [count, rolling_hash, 0]}, **arguments)
        )

    def confirm(self, rank, launches, number=1, processes="0,1"):
        """Send `Confirm` of a member that has launched these programs, which are numbers."""
        self.comparison.receive_confirm(rank, Confirm(processes, number, len(launches), hash_of(launches)))

    def mismatch(self):
        (text,) = {message.reason for _, message in self.received if isinstance(message, Mismatch)}
        assert {rank for rank, message in self.received if isinstance(message, Mismatch)} == {0, 1}
        return text


def hash_of(launches):
    history = LaunchHistory()
    history.recent.extend(launches)
    return history.count_and_hash()[1]


def launching(**launches):
    """Return members that have launched these programs, by rank (`r0=[1, 2]`)."""
    by_rank = {int(name[1:]): programs for name, programs in launches.items()}

    def answer(rank, detail):
        count = min(int(detail.split(" ")[1]), len(by_rank[rank]))
        return f"{count} {hash_of(by_rank[rank][:count])}"

    def history(rank, _):
        return json.dumps({index: f"`f{each}`" for index, each in enumerate(by_rank[rank], 1)})

    return Members(hash=answer, history=history), by_rank


@pytest.mark.parametrize("other", [[], [7], [7, 8], [7, 8, 9], [7, 8, 9, 9, 9]])
def test_a_read_is_confirmed_if_no_other_process_has_launched_anything_else(other):
    """A process that has made fewer launches, or more, is not waited for. Those that both have made are confirmed."""
    members, launches = launching(r0=[7, 8, 9], r1=other)
    members.confirm(0, launches[0], number=5)
    assert members.received == [(0, Confirmed("0,1", 5, min(3, len(other))))]


@pytest.mark.parametrize("other", [[8], [8, 7], [7, 9], [7, 9, 8], [8, 7, 9], [7, 9, 8, 1, 1], [7, 8, 10]])
def test_a_read_after_different_launches_is_a_mismatch(other):
    members, launches = launching(r0=[7, 8, 9], r1=other)
    members.confirm(0, launches[0])
    assert "differs: process 0 launched" in members.mismatch()


def test_a_read_is_compared_with_a_process_that_has_left():
    for last, is_equal in ((8, True), (9, False)):
        members, launches = launching(r0=[7, 8], r1=[7, last])
        members.comparison.receive_end(1, {"0,1": [2, hash_of(launches[1]), 0]})
        members.answers["hash"] = None  # nobody is asked
        members.confirm(0, launches[0])
        assert (members.received == [(0, Confirmed("0,1", 1, 2))]) == is_equal
        if not is_equal:
            assert "launch 2" in members.mismatch()


def test_a_process_that_does_not_answer_confirms_nothing():
    members, launches = launching(r0=[7], r1=[7])
    members.answers["hash"] = lambda rank, detail: ""
    members.confirm(0, launches[0])
    assert not members.received


def test_every_process_of_the_set_is_asked():
    members, launches = launching(r0=[7, 8], r2=[7, 8], r3=[8, 7])
    members.confirm(0, launches[0], processes="0,2,3")
    assert {rank for rank, message in members.received if isinstance(message, Mismatch)} == {0, 2, 3}


@pytest.mark.parametrize("last", [8, 9])
def test_the_launches_of_processes_that_leave_are_compared(last):
    members, launches = launching(r0=[7, 8], r1=[7, last])
    for rank in (0, 1):
        members.comparison.receive_end(rank, {"0,1": [2, hash_of(launches[rank]), 0]})
    assert bool(members.received) == (last == 9)


@pytest.mark.parametrize("first", [7, 9])
def test_the_launches_of_a_process_that_leaves_early_are_compared(first):
    members, launches = launching(r0=[7, 8], r1=[first, 8, 8])
    members.progress(1, 3, hash_of(launches[1]))
    members.comparison.receive_end(0, {"0,1": [2, hash_of(launches[0]), 0]})
    assert bool(members.received) == (first == 9)
    if first == 9:
        assert "launch 1 on the processes 0,1 differs" in members.mismatch()


def test_a_program_after_different_launches_is_a_mismatch():
    members, launches = launching(r0=[7, 8], r1=[8, 7])
    for rank in (0, 1):
        members.compare(rank, 3, launch=2, rolling_hash=hash_of(launches[rank]))
    assert not any(isinstance(message, Equal) for _, message in members.received)
    assert "launch 1 on the processes 0,1 differs: process 0 launched `f7`, process 1 `f8`" in members.mismatch()


def test_different_values_are_described():
    texts = {"7": "host value f32[] at a.py:3\n[0.5]", "8": "host value f32[] at a.py:3\n[1.5]"}
    members = Members(program=lambda rank, detail: texts[detail])
    members.compare(0, 7)
    members.compare(1, 8)
    assert members.mismatch() == (
        "the processes 0,1 use different values after 0 launches: process 0 f32[] at a.py:3, process 1 f32[] at "
        "a.py:3. The first difference is in line 1:\n  process 0: [0.5]\n  process 1: [1.5]"
    )


def test_hashes_after_launches_of_the_past_are_known():
    history, launches = LaunchHistory(), [random.Random(3).getrandbits(64) for _ in range(1000)]
    for fingerprint in launches:
        history.recent.append(fingerprint)
        if len(history.recent) >= REPORT_INTERVAL:
            history.fold()
    for count in (0, 1, 63, 64, 65, 500, 703, 704, 705, 959, 960, 961, 999, 1000, 2000):
        assert history.hash_after(count) == (min(count, 1000), hash_of(launches[:count]))
    assert history.by_number() == dict(enumerate(launches[704:], 705))


def test_hashes_beyond_the_history_are_those_of_the_last_fold_before(monkeypatch):
    monkeypatch.setattr(process_set, "_HISTORY", 128)
    history, launches = LaunchHistory(), list(range(1000))
    for fingerprint in launches:
        history.recent.append(fingerprint)
        if len(history.recent) >= REPORT_INTERVAL:
            history.fold()
    for count in (0, 1, 300, 600, 760, 959, 960, 1000, 2000):
        known, rolling_hash = history.hash_after(count)
        assert rolling_hash == hash_of(launches[:known])
        assert known == min(count, 1000) if count >= 832 else known <= count


def test_equal_programs_are_launched_when_the_last_process_comes():
    members = Members()
    members.compare(0, 7, processes="0,2,3")
    members.compare(3, 7, processes="0,2,3")
    assert not members.received
    members.compare(2, 7, processes="0,2,3")
    assert members.received == [(rank, Equal("0,2,3", 1)) for rank in (0, 2, 3)]
    members.compare(2, 8, number=2, launch=5, processes="0,2,3")
    assert len(members.received) == 3


def test_the_failure_of_a_callback_is_told_to_all_when_the_callbacks_of_the_last_process_have_ended():
    members = Members()
    for launch, reasons in ((3, ("", "", "")), (5, ("", "a callback raised KeyError", "a callback raised ValueError"))):
        for rank, reason in zip((0, 2, 3), reasons, strict=True):
            assert not members.received
            ended = CallbacksEnded("0,2,3", launch, rank, reason, f"traceback {rank}" if reason else "")
            members.comparison.receive_callbacks(rank, ended)
        assert [rank for rank, _ in members.received] == [0, 2, 3]
        (result,) = {message for _, message in members.received}
        members.received.clear()
        if launch == 3:
            assert (result.processes, result.launch, result.rank, result.reason) == ("0,2,3", 3, -1, "")
        else:
            assert result == CallbackResult("0,2,3", 5, 2, 2, "a callback raised KeyError", "traceback 2")


def test_sets_of_processes_are_compared_separately():
    members = Members()
    members.compare(0, 7, processes="0,1")
    members.compare(2, 8, processes="2,3")
    members.compare(3, 8, processes="2,3")
    assert [rank for rank, _ in members.received] == [2, 3]


def test_different_programs_are_described_to_all():
    texts = {"7": "f\nmodule {\n  add\n}", "8": "g\nmodule {\n  mul\n}"}
    members = Members(program=lambda rank, detail: texts[detail])
    members.compare(1, 8, launch=3)
    members.compare(0, 7, launch=3)
    assert members.mismatch() == (
        "launch 4 on the processes 0,1 differs: process 0 launches `f`, process 1 `g`. The first difference is in line "
        "2:\n  process 0: add\n  process 1: mul"
    )
    members.received.clear()
    members.compare(0, 7, launch=3)  # the set stays broken
    assert members.received[0][1].reason.startswith("launch 4")


@pytest.mark.parametrize("waits_first", [True, False])
def test_a_new_program_beside_a_known_one_is_a_mismatch(waits_first):
    """Process 0 waits with a new program; process 1 has launched one that was compared before."""
    members = Members(program=lambda rank, detail: f"new\n{detail}", launch=lambda rank, detail: f"old\n{detail}")
    if waits_first:
        members.compare(0, 7, launch=3)
        assert not members.received
        members.progress(1, 4, 99)
    else:
        members.progress(1, 4, 99)
        members.compare(0, 7, launch=3)
    assert "launch 4 on the processes 0,1 differs: process 0 launches `new`, process 1 `old`" in members.mismatch()
    assert "process 1: 0,1 3" in members.mismatch()  # it was asked for the launch after the third


def test_the_same_program_after_different_launches_is_a_mismatch():
    members = Members(program=lambda rank, detail: "f\nsame", launch=lambda rank, detail: "g\nother")
    members.compare(0, 7, launch=3)
    members.compare(1, 7, launch=5)
    assert "launch 4 on the processes 0,1 differs: process 0 launches `f`, process 1 `g`" in members.mismatch()


def test_equal_hashes_are_silent_and_different_ones_are_searched():
    histories = {0: {"63": "`f`", "64": "`g`"}, 1: {"63": "`g`", "64": "`f`"}}
    members = Members(history=lambda rank, detail: json.dumps(histories[rank]))
    members.progress(0, 64, 5)
    members.progress(1, 64, 5)
    members.progress(0, 100, 6)
    members.progress(1, 99, 8)
    assert not members.received
    members.progress(0, 128, 6)
    members.progress(1, 128, 7)
    assert members.mismatch() == (
        "launch 63 on the processes 0,1 differs: process 0 launched `f`, process 1 `g`. All processes must launch the "
        "same programs in the same order."
    )


def test_a_process_that_does_not_answer_is_no_obstacle():
    members = Members(history=lambda rank, detail: "", program=lambda rank, detail: "")
    members.progress(0, 64, 5)
    members.progress(1, 64, 6)
    assert "the processes 0 and 1 launched different programs" in members.mismatch()
    members = Members(program=lambda rank, detail: "")
    members.compare(0, 7)
    members.compare(1, 8)
    assert "launch 1 on the processes 0,1 differs: process 0 launches `?`" in members.mismatch()


def test_different_numbers_of_launches_at_one_step_are_a_mismatch():
    members = Members()
    members.progress(0, 10, 5, step=3, at_step=True)
    members.progress(1, 9, 4, step=3)  # a heartbeat says nothing about the step
    assert not members.received
    members.progress(1, 9, 4, step=3, at_step=True)
    assert "at step 3, the processes 0,1 have not made the same number of launches: process 0 10, process 1 9" in (
        members.mismatch()
    )


def test_only_so_many_hashes_are_kept():
    members = Members()
    for count in range(10_000):
        members.progress(0, count, count)
    assert len(members.comparison._sets["0,1"].hashes) == 256


def test_a_text_that_is_a_prefix_ends_there():
    text = describe_difference("0,1", 0, {0: ("f", "a\nb"), 1: ("f", "a")})
    assert text.endswith("line 2:\n  process 0: b\n  process 1: (the end)")


def test_an_old_difference_is_not_in_the_histories():
    assert "the setting debug_launch_order finds the first difference" in describe_order(
        "0,1", {0: {5: "`f`"}, 1: {5: "`f`"}}
    )


def test_survivors_of_a_failed_process_may_have_made_different_numbers_of_launches():
    """They restore a checkpoint and come to the same step again, with what each had launched before the failure."""
    members, _ = launching(r0=[7, 8], r2=[7, 8, 9])
    members.comparison.give_up(1)
    for rank, programs in ((0, [7, 8]), (2, [7, 8, 9])):
        members.progress(rank, len(programs), hash_of(programs), processes="0,1,2", step=5, at_step=True)
    assert not members.received
    for rank, programs in ((0, [7, 8]), (2, [7, 8, 9])):  # a set without the failed process is still compared
        members.progress(rank, len(programs), hash_of(programs), processes="0,2", step=5, at_step=True)
    assert {rank for rank, message in members.received if isinstance(message, Mismatch)} == {0, 2}
