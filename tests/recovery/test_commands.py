"""The campaign of random faults and the soak: what they choose, and how they judge what the processes print."""

import random

import pytest

from tests.recovery import campaign
from tests.recovery.campaign import (
    NODE_STEP_FAULTS,
    POINT_FAULTS,
    REQUIRED,
    SCRIPTED,
    STEP_FAULTS,
    choose,
    judge,
    situation_of,
    situations,
)
from tests.recovery.group_soak import Groups, differences
from tests.recovery.launches import Outcome
from tests.recovery.soak import DISK_KINDS, KINDS, Start, Training, commands, compare
from tests.recovery.training import KINDS as INJECTED
from tests.recovery.training import POINTS


def test_the_commands_choose_faults_that_the_program_has():
    assert {*STEP_FAULTS, *NODE_STEP_FAULTS, *POINT_FAULTS} <= INJECTED.keys()
    for kind in (*KINDS, *DISK_KINDS):
        for command in commands(kind, 1, 4):
            name, _, rank = command.partition(":")
            name, _, point = name.partition(".")
            assert name in INJECTED and int(rank) < 4 and (not point or point in POINTS)
    launches = [choose(random.Random(seed)) for seed in range(50)]
    for nodes, processes, spares, faults in (*launches, *SCRIPTED):
        assert 2 <= nodes * processes <= 4 and 0 <= spares <= 2 and faults
        for fault in faults:
            kind, _, place = fault.partition("@")
            number, rank = map(int, place.split(":"))
            name, _, point = kind.partition(".")
            assert name in INJECTED and rank < nodes * processes and number >= 0
            assert not point or point in POINTS


@pytest.fixture
def undisturbed(monkeypatch):
    """The losses of a run without faults: 1 in all steps."""
    losses = {step: {(1.0).hex()} for step in range(campaign.STEPS)}
    monkeypatch.setattr(campaign, "undisturbed", lambda processes, steps: losses)
    return losses


def outcome(losses, code=0, starts=((2, 0), (2, 5)), compiled=(0, 0), stderr=""):
    return Outcome(code, dict(losses), [], list(starts), list(compiled), None, stderr)


def test_launches_are_judged(undisturbed):
    assert judge(outcome(undisturbed), 2) == "recovered, bit for bit"
    assert judge(outcome(undisturbed, compiled=(0, 1)), 2) == "WRONG: programs were compiled again"
    rounded = {**undisturbed, 3: {(1.0 + 1e-7).hex()}}
    assert judge(outcome(rounded), 2) == "WRONG: the losses are not equal bit for bit"
    assert judge(outcome(rounded, starts=[(2, 0), (1, 3)]), 2) == "recovered, with fewer processes for some time"
    assert "WRONG: the losses of step 3" in judge(outcome({**undisturbed, 3: {(1.5).hex()}}), 2)
    assert judge(outcome({0: undisturbed[0]}), 2) == "WRONG: steps are missing"
    assert judge(outcome({}, code=1, stderr="Segmentation fault"), 2) == "WRONG: exit code 1"
    assert judge(outcome({}, code=1, stderr="...; no other process is left"), 2).startswith("ended: no other")


def test_situations_are_those_of_the_generations():
    sizes = [3, 3, 2, 3]
    assert situation_of("drop@5:1", sizes) == "drop at a step"
    faults = ["kill.send@0:1", "kill.send@1:1", "kill.join@2:1", "kill.fetch@3:1"]
    assert [situation_of(fault, sizes).rpartition(" ")[2] for fault in faults] == [
        "snapshot",
        "recovery",
        "shrink",
        "grow",
    ]
    ended = outcome({}, stderr="launch: a failure. 2 processes continue; b\nlaunch: a failure. 1 process continues\n")
    ended.happened = ["kill.fetch@1:0", "kill.send@2:0", "kill@2:0"]
    assert situations(ended, 2) == ["kill during a recovery", "kill during a shrink", "kill at a step"]
    scripted = {fault.partition("@")[0].partition(".")[0] + " at a step" for *_, faults in SCRIPTED for fault in faults}
    assert scripted >= {fault for fault in REQUIRED if fault.endswith("at a step")}


def test_throughput_and_recovery_times_are_read():
    training = Training(end=22.0)
    for line in (
        "[0] rank 0 of 2 starts at step 0 at 10.0",
        "[ 1] rank 1 of 2 starts at step 0 at 10.0",
        "[0] step 0 loss 0x1.0p+0 at 12.0 compiled 1",
        "[ 1] step 0 loss 0x1.0p+0 at 12.0 compiled 0",
        "[0] step 1 loss 0x1.0p+0 at 13.0 compiled 1",
        "[0] rank 0 of 2 starts at step 1 at 15.0",
        "[0] step 1 loss 0x1.0p+0 at 16.5 compiled 0",
        "[0] step 2 loss 0x1.8p+0 at 22.0 compiled 2",
    ):
        training.read(line)
    assert training.throughput() == 0.2 and training.compiled_again(2) == 2
    assert training.recovery_time(14.0) == 2.5 and training.recovery_time(20.0) is None
    expected = {0: {"0x1.0p+0"}, 1: {"0x1.0p+0"}, 2: {"0x1.8p+0"}}
    assert compare("a run", training, expected, 2) == (3, [])
    expected[2] = {"0x1.80001p+0"}
    assert "the losses of step 2" in compare("a run", training, expected, 2)[1][0]
    training.starts.append(Start(17.0, 1))
    assert compare("a run", training, expected, 2) == (2, [])


def test_losses_of_groups_are_compared_by_update():
    groups = Groups()
    for line in (
        "[0] ready 17",
        "[0] group 2 update 5 loss 0x1.0p+0",
        "[0] group 1 update 5 loss 0x1.0p+0",
        "[0] other",
    ):
        groups.read(line)
    assert (groups.starts, groups.losses) == (1, {5: {"0x1.0p+0"}})
    assert differences(groups, Groups(losses={4: {"0x1.0p+0"}, 5: {"0x1.0p+1"}})) == [0.5]
