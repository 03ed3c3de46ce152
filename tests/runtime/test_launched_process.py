"""Programs under `shardwise launch` that do not call `distributed.initialize`: their first use of a device joins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.runtime.launched_process import is_launched

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300  # seconds for a launch, which a test that passes never needs


def launch(*arguments, processes=2):
    """Launch a program of `first_use.py` with two devices per process."""
    options = ["-n", str(processes), "--devices-per-process", "2", "tests/runtime/first_use.py", *arguments]
    command = [sys.executable, "-m", "shardwise", "launch", *options]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=ROOT, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.faults
def test_the_first_use_of_a_device_joins_the_processes():
    printed = launch("join")
    for rank in range(2):
        assert f"[{rank}] rank {rank} of [2, 2]: 4.0, True" in printed
    assert printed.count("distributed.initialize must come before the first use of a device, at which") == 2


@pytest.mark.slow
def test_an_explicit_call_comes_first():
    printed = launch("initialize_first")
    assert "[0] rank 0 of 2: 4.0" in printed and "[1] rank 1 of 2: 4.0" in printed


@pytest.mark.slow
@pytest.mark.faults
def test_processes_that_a_launched_process_starts_have_devices_of_their_own():
    printed = launch("start_children")
    assert printed.count("child: 2 devices, 1 processes") == 6
    assert printed.count("of `shardwise launch`, and uses devices of its own") == 4
    assert printed.count("4.0 devices") == 2


@pytest.mark.slow
@pytest.mark.faults
def test_forked_children_do_not_speak_for_their_process():
    printed = launch("fork")
    assert printed.count("child: exit code 3") == printed.count("child: exit code 1") == 2
    assert printed.count("4.0 devices still") == 2


@pytest.mark.slow
@pytest.mark.faults
def test_a_child_that_is_forked_while_its_process_joins_has_devices_of_its_own():
    printed = launch("fork_during_join")
    assert "child: 2 devices" in printed and "child: exit code 0" in printed
    assert printed.count("4.0 devices") == 2


@pytest.mark.slow
def test_a_program_without_devices_does_not_join():
    assert sorted(launch("compute_on_the_host").splitlines()) == ["[0] sum 3", "[1] sum 3"]


@pytest.mark.parametrize("parent", ["", "1", "garbage"])
def test_only_a_child_of_the_launcher_is_launched(parent, monkeypatch):
    monkeypatch.setenv("SHARDWISE_LAUNCHER_PID", parent)
    assert not is_launched()


@pytest.mark.parametrize(("leads_session", "expected"), [(True, True), (False, False)])
def test_a_launched_process_leads_a_session(leads_session, expected):
    """A process whose parent has ended may become a child of the launcher, but does not lead a session."""
    code = "from shardwise.runtime.launched_process import is_launched; print(is_launched())"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SHARDWISE_LAUNCHER_PID": str(os.getpid())}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
        env=variables,
        start_new_session=leads_session,
    )
    assert done.stdout.strip() == str(expected)
