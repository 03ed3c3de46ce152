"""The survivors of a killed process restore the last checkpoint onto a smaller mesh, in the same processes."""

import re

import pytest

from tests.multi_process.cluster import run_processes
from tests.multi_process.resumable import STEPS

PROCESSES = 3


def run(folder, fault):
    """Return the outputs of all processes."""

    def arguments(rank, port):
        return ["tests/multi_process/shrinking.py", *map(str, (rank, PROCESSES, port, folder, fault))]

    return run_processes(arguments, PROCESSES, killed={1} if fault == "kill" else set())


def losses(output):
    return {int(step): float.fromhex(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)}


@pytest.mark.slow
@pytest.mark.faults
def test_survivors_go_on_with_equal_losses(tmp_path):
    expected = losses(run(tmp_path / "all", "none")[0])
    outputs = run(tmp_path / "killed", "kill")
    assert all(f"process {rank} goes on without process 1" in outputs[rank] for rank in (0, 2))
    assert losses(outputs[0]) == pytest.approx(expected, abs=2e-6)
    assert len(expected) == STEPS
