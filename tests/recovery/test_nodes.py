"""Programs on several nodes, each with a launcher of its own, whose processes or nodes fail."""

import pytest

from tests.recovery.launches import run, undisturbed
from tests.recovery.test_recovery import check_close, check_recovered

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("kill@6:1", "process 4 has rank 1"),
        ("kill@6:2", "process 5 has rank 2"),
        ("stop@7:3", "process 5 has rank 3"),
        ("coordinator@6:0", "4 processes continue\n"),
    ],
)
def test_a_spare_of_the_same_node_takes_the_place_of_a_process(fault, place):
    outcome = run(fault, nodes=2)
    check_recovered(outcome, 4)
    assert place in outcome.stderr


def test_a_spare_of_another_node_takes_the_place_of_a_process():
    outcome = run("kill@6:2", "kill@6:3", nodes=2)
    check_recovered(outcome, 4)
    assert "process 4 has rank " in outcome.stderr and "process 5 has rank " in outcome.stderr


def test_spares_take_the_places_of_a_lost_node():
    outcome = run("node@6:2", nodes=2, spares=2)
    check_recovered(outcome, 4)
    assert "shardwise launch: node 1 is lost: the connection of its launcher closed" in outcome.stderr
    assert "process 2 (rank 2) ended: lost with node 1" in outcome.stderr
    assert "4 processes continue; process 4 has rank 2; process 5 has rank 3" in outcome.stderr


def test_a_spare_node_takes_the_places_of_a_lost_node():
    outcome = run("node@6:2", "kill@9:3", nodes=3, spares=0, spare_nodes=1)
    check_recovered(outcome, 4)
    assert "4 processes continue; process 4 has rank 2; process 5 has rank 3" in outcome.stderr


@pytest.mark.parametrize(("spares", "processes"), [(0, 2), (1, 3)])
def test_fewer_processes_continue_without_a_lost_node(spares, processes):
    outcome = run("node@6:2", nodes=2, spares=spares, fewest=1)
    assert outcome.code == 0, outcome
    assert sorted(count for count, _ in outcome.starts) == [*[processes] * processes, *[4] * 4]
    check_close(outcome, 4, 12)


def test_a_node_that_comes_back_takes_part_again():
    outcome = run("node@6:2", nodes=2, spares=0, fewest=1, returning={1}, steps=60, pause=0.5)
    assert outcome.code == 0, outcome
    assert outcome.stderr.count("node 1 takes part") == 2
    assert [count for count, _ in outcome.starts].count(4) == 8
    check_close(outcome, 4, 60)


def test_the_job_starts_again_when_the_launcher_of_node_0_does():
    outcome = run("launcher@6:1", nodes=2, returning={0})
    assert outcome.code == 0, outcome
    assert outcome.stderr.count("node 1 takes part") == 2
    assert outcome.losses == undisturbed(4)


def test_a_single_process_of_each_node_has_a_partner():
    outcome = run("raise@6:1", nodes=2, processes=1, spares=0)
    check_recovered(outcome, 2)
    assert "process 1 (rank 1) ended: exit code 1" in outcome.stderr


def test_a_program_that_cannot_start_on_several_nodes_ends():
    outcome = run(nodes=2, steps="many")
    assert outcome.code == 2
    assert "invalid int value: 'many'" in outcome.stderr


def test_a_program_that_always_fails_on_another_node_ends_with_its_traceback():
    outcome = run("fail@6:1", nodes=2, processes=1, spares=0)
    assert outcome.code == 1
    assert "the last 5 recoveries have reached no further step" in outcome.stderr
    assert "ValueError: an injected error" in outcome.stderr
