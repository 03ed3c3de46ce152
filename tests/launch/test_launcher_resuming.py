"""Training that is killed and restarted continues from its last checkpoint, with the losses of an uninterrupted run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def losses(program, folder, fault, *options):
    """Return the last loss that was printed for each step, and the exit code."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "shardwise", "launch", "-n", "2", "--devices-per-process", "2", "--timeout", "300"),
            *options,
            *(str(ROOT / "tests/launch" / program), str(folder), fault),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    return dict(re.findall(r"step (\d+) loss (\S+)", run.stdout)), run


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(("program", "steps"), [("resuming.py", 10), ("resuming_pipeline.py", 8)])
def test_a_killed_run_resumes_with_equal_losses(program, steps, tmp_path):
    expected, run = losses(program, tmp_path / "whole", "none")
    assert run.returncode == 0, run.stderr
    assert len(expected) == steps
    resumed, run = losses(program, tmp_path / "killed", "kill", "--max-restarts", "1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert resumed == expected
