"""The coordinator's comparison of launches, with members that are simulated here."""

import json

import pytest

from shardwise.processes.comparison import LaunchComparison, describe_difference, describe_order
from shardwise.processes.protocol import CallbackResult, CallbacksEnded, Comparison, Equal, Mismatch, Progress


class Members:
    """Members that answer at once, and the messages that they get."""

    def __init__(self, **answers):
        self.received = []
        self.answers = answers  # by question: a function of rank and detail
        self.comparison = LaunchComparison(self.ask, lambda rank, message: self.received.append((rank, message)))

    def ask(self, rank, question, detail, then):
        then(self.answers[question](rank, detail))

    def compare(self, rank, fingerprint, number=1, launch=0, processes="0,1"):
        self.comparison.receive_comparison(rank, Comparison(processes, number, launch, fingerprint, f"f{fingerprint}"))

    def progress(self, rank, count, rolling_hash, processes="0,1", **arguments):
        self.comparison.receive_progress(
            rank, Progress(arguments.pop("step", None), {processes: [count, rolling_hash, 0]}, **arguments)
        )

    def mismatch(self):
        (text,) = {message.reason for _, message in self.received if isinstance(message, Mismatch)}
        assert {rank for rank, message in self.received if isinstance(message, Mismatch)} == {0, 1}
        return text


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
