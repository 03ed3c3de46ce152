"""Errors of programs on several processes: see `error_cases`. Faults 23 to 25."""

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases

pytestmark = pytest.mark.faults

MODULE = "tests.multi_process.error_cases"


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", cases(MODULE))
def test_every_process_raises_the_same_error(case, processes):
    first, *others = check_case(run_cases(MODULE, processes, 2)[case])
    assert first and all(messages == first for messages in others)
