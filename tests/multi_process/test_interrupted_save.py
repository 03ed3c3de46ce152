"""A save that fails in one process fails in all, and its step is never listed: see `interrupted_save`."""

import json

import pytest

from shardwise import checkpoints
from tests.multi_process.cluster import ROOT, run_processes

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def run(folder, fault, victim):
    """Return the error of the save and the steps that each of two processes prints; None if it prints nothing."""
    script = str(ROOT / "tests/multi_process/interrupted_save.py")
    outputs = run_processes(
        lambda rank, port: [script, str(rank), "2", str(port), str(folder), fault, str(victim)], 2, may_fail=True
    )
    lines = [[line for line in output.splitlines() if line.startswith("RESULT ")] for output in outputs]
    return [json.loads(found[0].removeprefix("RESULT ")) if found else None for found in lines], outputs


@pytest.mark.parametrize("victim", [0, 1])
def test_a_store_error_of_one_process_is_an_error_in_all(tmp_path, victim):
    results, outputs = run(tmp_path, "store error", victim)
    assert None not in results, outputs
    for rank, (kind, message, steps) in enumerate(results):
        assert kind == "CheckpointError" and "File too large" in message, message
        assert ("process" in message) == (rank != victim), message
        if rank != victim:
            assert f"process {victim} failed" in message and "step-2" in message
        assert steps == [1, 1, 3]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-1", "step-3"]
    assert checkpoints.verify(tmp_path / "step-3") == checkpoints.verify(tmp_path / "step-1")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_during_a_save_is_an_error_in_the_others(tmp_path, victim):
    results, outputs = run(tmp_path, "kill", victim)
    survivor = 1 - victim
    assert results[victim] is None and results[survivor] is not None, outputs
    kind, message, steps = results[survivor]
    assert kind == "PeerFailure" and f"process {victim}" in message and steps == [1]
    checkpoints.verify(tmp_path / "step-1")
    manager = checkpoints.Manager(tmp_path, save_on_sigterm=False)  # deletes what the killed process left
    assert manager.steps() == [1] and [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("fault", ["stop", "stop writing", "sleep"])
def test_a_process_that_is_stopped_or_sleeps_while_others_save_is_named(tmp_path, fault, victim):
    results, outputs = run(tmp_path, fault, victim)
    assert results[victim] is None and results[1 - victim] is not None, outputs
    kind, message, steps = results[1 - victim]
    assert kind == "PeerFailure" and f"process {victim} failed" in message and steps == [1]
    assert "step-2" in message and " 10 s" in message, message
    checkpoints.verify(tmp_path / "step-1")


def test_a_process_that_skips_a_save_is_named(tmp_path):
    results, outputs = run(tmp_path, "skip", 1)
    assert None not in results, outputs
    for rank, (kind, message, steps) in enumerate(results):
        assert kind == "PeerFailure" and f"process {1 - rank} failed" in message and steps == [1]
        assert "Every process must save and restore the same steps" in message
