"""Outer gradients of a group that has several processes: see `outer_cases`."""

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases

MODULE = "tests.multi_process.outer_cases"


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(MODULE))
def test_on_two_processes(case):
    check_case(run_cases(MODULE, 2, 2)[case])
