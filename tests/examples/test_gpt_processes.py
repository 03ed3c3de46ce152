"""The GPT on two processes with four devices each, compared with one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "examples/gpt_processes.py"


def launch(folder, steps):
    """Run the example in two processes."""
    command = [sys.executable, "-m", "shardwise", "launch", "-n", 2, "--devices-per-process", 4, ROOT / SCRIPT]
    return subprocess.run(
        [*map(str, command), "--steps", str(steps), "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_losses_equal_those_of_one_process(tmp_path):
    first = launch(tmp_path, 3)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("every loss equals that of one process alone") == 2
    assert first.stdout.count("train_step on mesh data=4, model=2") == 1  # one process prints
    second = launch(tmp_path, 5)
    assert second.returncode == 0, second.stderr
    assert second.stdout.count("continue after step 3") == 1
    assert second.stdout.count("every loss equals that of one process alone") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "loss.png", "plan.html"}


def test_makefile_runs_it():
    assert f"shardwise launch -n 2 --devices-per-process 4 {SCRIPT}" in (ROOT / "Makefile").read_text()
