"""The campaign of random faults and the soak: what they choose, and how they judge what the processes print."""

import random

import pytest

from tests.recovery import campaign
from tests.recovery.campaign import POINT_FAULTS, STEP_FAULTS, choose, judge
from tests.recovery.group_soak import Groups, differences
from tests.recovery.launches import Outcome
from tests.recovery.soak import KINDS, Training, compare
from tests.recovery.training import KINDS as INJECTED
from tests.recovery.training import POINTS


def test_the_commands_choose_faults_that_the_program_has():
    assert {*STEP_FAULTS, *POINT_FAULTS, *KINDS} <= INJECTED.keys()
    for seed in range(50):
        processes, spares, faults = choose(random.Random(seed))
        assert 2 <= processes <= 4 and 0 <= spares <= 2 and faults
        for fault in faults:
            kind, _, place = fault.partition("@")
            number, rank = map(int, place.split(":"))
            name, _, point = kind.partition(".")
            assert name in INJECTED and rank < processes and number >= 0
            assert not point or point in POINTS


@pytest.fixture
def undisturbed(monkeypatch):
    """The losses of a run without faults: 1 in all steps."""
    losses = {step: {(1.0).hex()} for step in range(campaign.STEPS)}
    monkeypatch.setattr(campaign, "undisturbed", lambda processes, steps: losses)
    return losses


def outcome(losses, code=0, starts=((2, 0), (2, 5)), compiled=(0, 0), stderr=""):
    return Outcome(code, dict(losses), [], list(starts), list(compiled), stderr)


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


def test_throughput_and_recovery_times_are_read():
    training = Training()
    for line in (
        "[0] rank 0 of 2 starts at step 0 at 10.0",
        "[0] step 0 loss 0x1.0p+0 at 12.0",
        "[1] step 0 loss 0x1.0p+0 at 12.0",
        "[0] step 1 loss 0x1.0p+0 at 13.0",
        "[0] rank 0 of 2 starts at step 1 at 15.0",
        "[0] step 1 loss 0x1.0p+0 at 16.5",
        "[0] step 2 loss 0x1.8p+0 at 22.0",
    ):
        training.read(line)
    assert training.throughput(22.0) == 0.3
    assert training.recovery_time(14.0) == 2.5 and training.recovery_time(20.0) is None
    expected = Training(losses={0: {"0x1.0p+0"}, 1: {"0x1.0p+0"}, 2: {"0x1.8p+0"}})
    assert compare("a run", training, expected, 2) == []
    expected.losses[2] = {"0x1.9p+0"}
    assert "the losses of step 2" in compare("a run", training, expected, 2)[0]


def test_losses_of_groups_are_compared_by_update():
    groups = Groups()
    for line in ("[0] ready 17", "[0] group 2 update 5 loss 0x1.0p+0", "[0] group 1 update 5 loss 0x1.0p+0", "[0] other"):
        groups.read(line)
    assert (groups.starts, groups.losses) == (1, {5: {"0x1.0p+0"}})
    assert differences(groups, Groups(losses={4: {"0x1.0p+0"}, 5: {"0x1.0p+1"}})) == [0.5]
