"""The survivors of a killed process restore the last checkpoint onto a smaller mesh, in the same processes."""

import os
import re
import subprocess
import sys

import pytest

from tests.multi_process.cluster import ROOT, free_port

PROCESSES = 3


def run(folder, fault):
    """Return the exit codes and outputs of all processes."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "tests/multi_process/shrinking.py")),
                *(str(rank), str(PROCESSES), str(port), str(folder), fault),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for rank in range(PROCESSES)
    ]
    try:
        outputs = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [rank.returncode for rank in ranks], outputs


def losses(output):
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)}


@pytest.mark.slow
@pytest.mark.faults
def test_survivors_go_on_with_equal_losses(tmp_path):
    codes, outputs = run(tmp_path / "whole", "none")
    assert codes == [0, 0, 0], outputs
    expected = losses(outputs[0])
    codes, outputs = run(tmp_path / "killed", "kill")
    assert codes == [0, -9, 0], outputs
    assert all(f"process {rank} goes on without process 1" in outputs[rank] for rank in (0, 2))
    assert losses(outputs[0]) == pytest.approx(expected, abs=2e-6)
    assert len(expected) == 10
