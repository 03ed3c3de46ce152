"""The command line: what a command does not need is not loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["shardwise.checkpoints", "tensorstore", "rich", "scipy"]


def modules(code, *arguments):
    """Run code in a process of its own, and return the names of the modules that it has loaded at the end."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    return set(run.stdout.split())


def test_run_does_not_load_checkpoints(tmp_path):
    (tmp_path / "script.py").write_text("import jax")
    code = "import sys; from shardwise.launch.command_line import main; main(['run', sys.argv[1]])"
    loaded = modules(code, str(tmp_path / "script.py"))
    assert "jax" in loaded and not loaded.intersection(HEAVY)


@pytest.mark.parametrize("module", ["command_line", "doctor", "launcher"])
def test_commands_are_loaded_when_they_run(module):
    assert not modules(f"import shardwise.launch.{module}").intersection(HEAVY)


def test_the_checkpoint_command_runs(tmp_path):
    command = [sys.executable, "-m", "shardwise", "checkpoint", "ls", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr == f"shardwise checkpoint ls: there is no checkpoint in {tmp_path}\n"
