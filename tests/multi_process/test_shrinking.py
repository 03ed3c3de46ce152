"""The survivors of a killed process restore the last checkpoint onto a smaller mesh, in the same processes."""

import re

import pytest

from tests.multi_process.cluster import run_processes
from tests.multi_process.resumable import STEPS


def run(folder, fault, processes, killed=()):
    """Return the outputs of all processes."""

    def arguments(rank, port):
        return ["tests/multi_process/shrinking.py", *map(str, (rank, processes, port, folder, fault))]

    return run_processes(arguments, processes, killed=killed)


def losses(output):
    return {int(step): float.fromhex(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)}


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("processes", "fault", "killed"),
    [(3, "1", {1}), (4, "1,3", {1, 3}), (4, "1;3", {1, 3}), (4, "0,2", {0, 2})],
    ids=["one", "two at once", "one after the other", "two at once with process 0"],
)
def test_survivors_go_on_with_equal_losses(tmp_path, processes, fault, killed):
    expected = losses(run(tmp_path / "all", "none", processes)[0])
    outputs = run(tmp_path / "killed", fault, processes, killed)
    survivors = set(range(processes)) - killed
    for rank in survivors:
        for dead in killed:
            assert f"process {rank} goes on without process {dead}" in outputs[rank]
    if 0 in survivors:  # which prints the losses
        assert losses(outputs[0]) == pytest.approx(expected, abs=2e-6)
        assert len(expected) == STEPS
