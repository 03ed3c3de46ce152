"""Snapshots in the memory of other processes, on several processes, with and without failures."""

import re

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases, run_processes
from tests.multi_process.snapshot_recovery import FAULT_STEP, PEER_TIMEOUT, STEPS

MODULE = "tests.multi_process.peer_snapshot_cases"


@pytest.mark.parametrize("case", cases(MODULE))
def test_on_three_processes(case):
    check_case(run_cases(MODULE, 3, 2)[case])


def run(fault, processes, killed=()):
    """Return the outputs of all processes."""

    def arguments(rank, port):
        return ["tests/multi_process/snapshot_recovery.py", *map(str, (rank, processes, port, fault))]

    return run_processes(arguments, processes, killed=killed)


def losses(output):
    return {int(step): float.fromhex(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)}


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "killed"), [("1", {1}), ("0,2", {0, 2}), ("1;3", {1, 3})], ids=["one", "two at once", "during recovery"]
)
def test_survivors_continue_from_the_memory_of_partners(fault, killed):
    """The state of the dead processes was in their memory, and in that of their partners, and nowhere else."""
    expected = losses(run("none", 4)[0])
    outputs = run(fault, 4, killed)
    assert len(expected) == STEPS
    for rank in {0, 1, 2, 3} - killed:
        assert f"process {rank} continues after step {FAULT_STEP - 2}" in outputs[rank]
        assert losses(outputs[rank]) == pytest.approx(expected, abs=1e-5)
        # The runs that waited for the dead process did not wait until XLA's timeout.
        assert all(float(seconds) < PEER_TIMEOUT for seconds in re.findall(r"recovered in (\S+) s", outputs[rank]))


@pytest.mark.slow
@pytest.mark.faults
def test_the_death_of_a_process_and_its_partner_is_an_error_that_says_what_is_lost():
    outputs = run("1,2", 4, {1, 2})
    for rank in (0, 3):
        assert "lost: no snapshot is complete in the memory of the processes [0, 3]" in outputs[rank]
        assert "which the processes [1] held" in outputs[rank]
        assert "restore the newest checkpoint on disk" in outputs[rank]
