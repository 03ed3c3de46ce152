"""Programs whose failed processes are replaced: every loss equals that of a run without faults, bit for bit."""

import os
import re
import subprocess
import sys

import pytest

import shardwise as sw
from shardwise.processes.roster import Roster
from shardwise.processes.variables import LAUNCHER_PID, ROSTER, ROSTER_PROCESS, ROSTER_TOKEN
from tests.recovery.launches import ROOT, run, undisturbed

pytestmark = pytest.mark.faults


def check_recovered(outcome, processes, steps=12, restores=True):
    """Check that the run has ended with the losses of a run without faults, and that nothing was compiled again."""
    assert outcome.code == 0, outcome
    assert outcome.losses == undisturbed(processes, steps)
    assert outcome.compiled == [0] * processes, outcome.stdout
    assert any(start > 0 for _, start in outcome.starts) == restores, outcome.starts
    assert {count for count, _ in outcome.starts} == {processes}


def check_close(outcome, processes, steps):
    """Check that the losses are those of a run without faults, within rounding: sums of fewer processes differ."""
    expected = undisturbed(processes, steps)
    assert sorted(outcome.losses) == list(range(steps))
    for step, losses in outcome.losses.items():
        (wanted,) = map(float.fromhex, expected[step])
        assert [float.fromhex(loss) for loss in losses] == pytest.approx([wanted] * len(losses), rel=1e-4), step


def test_a_spare_takes_the_place_of_a_killed_process():
    outcome = run("kill@6:1")
    check_recovered(outcome, 2)
    assert "process 1 (rank 1) ended: killed by SIGKILL" in outcome.stderr
    assert "2 processes continue; process 2 has rank 1" in outcome.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill@6:0", "kill@7:2", "kill@11:1", "stop@6:1", "raise@6:0"])
def test_any_process_of_three_may_fail(fault):
    outcome = run(fault, processes=3)
    check_recovered(outcome, 3)
    assert ("ValueError: an injected error" in outcome.stderr) == fault.startswith("raise")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["coordinator@6:1", "drop@6:2", "gloo@6:0"])
def test_the_same_processes_continue_after_the_loss_of_connections(fault):
    outcome = run(fault, processes=3)
    check_recovered(outcome, 3)
    assert "3 processes continue\n" in outcome.stderr


@pytest.mark.slow
def test_fewer_processes_continue_until_another_one_is_ready():
    outcome = run("kill@6:1", processes=3, spares=0, fewest=1, steps=40, pause=0.5)
    assert outcome.code == 0, outcome
    assert [count for count, _ in outcome.starts] == [3] * 3 + [2] * 2 + [3] * 3
    assert outcome.compiled == [0] * 3, "the program for three processes is compiled again"
    check_close(outcome, 3, 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        ["kill@6:0", "kill@6:2"],
        ["kill@6:0", "kill.join@1:2"],
        ["kill.send@0:1"],
        ["kill@6:1", "kill.send@1:2"],  # the partner of the first one, when its copies have not arrived yet
    ],
    ids=str,
)
def test_several_deaths(faults):
    outcome = run(*faults, processes=4, spares=2)
    check_recovered(outcome, 4, restores=faults != ["kill.send@0:1"])  # before the first snapshot is complete
    assert outcome.happened == sorted(faults)


@pytest.mark.slow
def test_a_single_process_continues_when_the_other_one_dies_at_the_start():
    outcome = run("kill.join@0:1", spares=0, fewest=1)
    assert outcome.code == 0, outcome
    assert outcome.starts[0] == (1, 0)
    check_close(outcome, 2, 12)


@pytest.mark.slow
def test_a_death_while_another_process_joins_or_the_others_shrink():
    faults = ["kill@6:1", "kill.choose@1:1", "kill.fetch@3:0"]
    outcome = run(*faults, processes=4, spares=0, fewest=1, steps=60, pause=0.5)
    assert outcome.code == 0, outcome
    assert outcome.happened == sorted(faults)
    check_close(outcome, 4, 60)


@pytest.mark.slow
def test_a_state_that_is_lost_in_memory_comes_from_the_disk():
    outcome = run("kill@25:1", "kill@25:2", processes=4, spares=2, steps=30, pause=0.1)
    assert outcome.code == 0, outcome
    assert "which the processes [1] held" in outcome.stdout
    assert [start for _, start in outcome.starts] == [0] * 4 + [21] * 4
    assert outcome.losses == undisturbed(4, 30)


@pytest.mark.slow
def test_a_state_that_is_lost_in_memory_and_not_on_disk_is_an_error():
    outcome = run("kill@6:1", "kill@6:2", processes=4, spares=2)
    assert outcome.code == 1
    assert "CheckpointNotFound: no snapshot is complete in the memory of the processes [0, 1, 2, 3]" in outcome.stderr


@pytest.mark.slow
def test_a_program_does_not_start_again_without_its_state():
    outcome = run("kill@6:1", "kill.join@1:0", processes=2, spares=2)
    assert outcome.code != 0 and outcome.happened == ["kill.join@1:0", "kill@6:1"], outcome
    assert "no process is left that has a snapshot" in outcome.stderr
    assert {start for _, start in outcome.starts} == {0} and len(outcome.starts) == 2


@pytest.mark.slow
def test_a_program_that_always_fails_ends():
    outcome = run("fail@6:1", processes=2, spares=1)
    assert outcome.code == 1
    assert outcome.stderr.count("(rank 1) ended: exit code 1") >= 6
    assert "the last 5 recoveries have reached no further step" in outcome.stderr
    assert "ValueError: an injected error" in outcome.stderr


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_slow_process():
    outcome = run("slow@6:1", processes=3, steps=100, pause=0.1, straggler_seconds=3)
    check_recovered(outcome, 3, steps=100)
    assert "process 1 (rank 1) delays the others, and is killed" in outcome.stderr
    assert "process 1 (rank 1) ended: killed by SIGKILL, by the launcher" in outcome.stderr
    assert "3 processes continue; process 3 has rank 1" in outcome.stderr
    assert "time.sleep(options.pause + sum(slow_steps))" in outcome.stderr, "the stack is not reported"


@pytest.mark.slow
def test_a_slow_process_stays_if_its_replacement_is_slow_too():
    outcome = run("slow@6:1", "slow@30:1", processes=2, steps=60, pause=0.1, straggler_seconds=3)
    check_recovered(outcome, 2, steps=60)
    assert "process 1 (rank 1) delays the others, and is killed" in outcome.stderr
    assert "process 2 (rank 1) delays the others, as did the process that it replaced, and stays" in outcome.stderr


@pytest.mark.slow
def test_clients_of_earlier_generations_end():
    """A generation of two CPU devices has about 14 threads; one earlier client lives as long as its snapshot."""
    outcome = run(*(f"gloo@{step}:0" for step in range(3, 11)), spares=0)
    check_recovered(outcome, 2)
    threads = [int(count) for count in re.findall(r"^\[0\] threads: (\d+)", outcome.stdout, re.MULTILINE)]
    assert len(threads) == 9 and threads[-1] < threads[0] + 50, threads


@pytest.mark.slow
def test_a_program_that_cannot_start_ends():
    outcome = run(steps="many")
    assert outcome.code == 2
    assert "invalid int value: 'many'" in outcome.stderr


def test_a_process_without_a_launcher_that_accepts_it_ends():
    roster = Roster(2)
    variables = {
        LAUNCHER_PID: str(os.getpid()),
        ROSTER: roster.address,
        ROSTER_PROCESS: "0",
        ROSTER_TOKEN: "another",
        "PYTHONPATH": str(ROOT),
    }
    try:
        process = subprocess.run(
            [sys.executable, "-c", "import shardwise as sw; sw.checkpoints.recover(lambda snapshots: None)"],
            env={**os.environ, **variables},
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        roster.stop()
    assert process.returncode == 1
    assert "refuses this process: the token is not that of the launcher" in process.stderr


def test_recover_needs_the_launcher():
    with pytest.raises(RuntimeError, match="start the program with `shardwise launch --spares 1`"):
        sw.checkpoints.recover(lambda snapshots: None)
