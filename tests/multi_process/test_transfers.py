"""Transfers between processes, and arrays without a device in some process: see `transfer_cases`."""

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases

MODULE = "tests.multi_process.transfer_cases"
FAST = tuple(case for case in cases(MODULE) if case != "every_move")
MANY = tuple(case for case in cases(MODULE) if case != "values_that_differ")  # which is for two processes


@pytest.mark.parametrize("case", [pytest.param(each, marks=[pytest.mark.slow] * (each == "moves")) for each in FAST])
def test_on_two_processes(case):
    check_case(run_cases(MODULE, 2, 2, FAST)[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY)
def test_on_four_processes(case):
    check_case(run_cases(MODULE, 4, 2, MANY)[case])
