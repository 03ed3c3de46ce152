"""MPMD pipelines on several processes: see `mpmd_cases`."""

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases, run_processes

MODULE = "tests.multi_process.mpmd_cases"
TRAINING = tuple(case for case in cases(MODULE) if case not in ("agreement", "other_update", "checkpoint"))


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINING)
@pytest.mark.parametrize("processes", [2, 4])
def test_losses_equal_one_device(case, processes):
    results = check_case(run_cases(MODULE, processes, 2 if processes == 2 else 1, TRAINING)[case])
    assert all(result == results[0] for result in results)  # every process has the loss


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_checkpoint_of_stages_restores_on_other_ranks(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_FOLDER", str(tmp_path))
    check_case(run_cases(MODULE, processes, 4 // processes, ("checkpoint",))["checkpoint"])


@pytest.mark.slow
def test_schedules_are_compared():
    for message in check_case(run_cases(MODULE, 2, 1, ("agreement",))["agreement"]):
        assert "schedule '1f1b' with digest" in message and "Process 1: schedule 'zb-h1'" in message


@pytest.mark.slow
def test_updates_are_compared():
    for message in check_case(run_cases(MODULE, 2, 1, ("other_update",))["other_update"]):
        assert "update with digest" in message


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("fault", ["kill", "sleep"])
def test_lost_process_is_an_error_in_the_process_that_waits_for_it(fault):
    module = "tests.multi_process.lost_stage"
    outputs = run_processes(lambda rank, port: ["-m", module, str(rank), str(port), fault], 2, may_fail=True)
    assert "FAILURE 1 " in outputs[0], outputs
    assert ("it did not send" in outputs[0]) == (fault == "sleep"), outputs
