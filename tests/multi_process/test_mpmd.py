"""MPMD pipelines on several processes: see `mpmd_cases`."""

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases

MODULE = "tests.multi_process.mpmd_cases"
TRAINING = tuple(case for case in cases(MODULE) if case != "agreement")


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINING)
@pytest.mark.parametrize("processes", [2, 4])
def test_losses_equal_one_device(case, processes):
    results = check_case(run_cases(MODULE, processes, 2 if processes == 2 else 1, TRAINING)[case])
    assert all(result == results[0] for result in results)  # every process has the loss


def test_schedules_are_compared():
    for message in check_case(run_cases(MODULE, 2, 1, ("agreement",))["agreement"]):
        assert "schedule '1f1b' with digest" in message and "Process 1: schedule 'zb-h1'" in message
