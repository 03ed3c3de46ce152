"""A few random programs in which `auto_axes` leaves Explicit axes to the planner."""

import numpy as np
import pytest

from tests.fuzz.axis_types import check_all_axes, check_some_axes
from tests.fuzz.check import random_case

BLOCK = 10  # cases per test


@pytest.mark.table(default=6)
@pytest.mark.parametrize("first", range(0, 60, BLOCK))
@pytest.mark.parametrize("check", [check_all_axes, check_some_axes])
def test_programs_with_auto_axes(check, first):
    for seed in range(first, first + BLOCK):
        case = random_case(seed)
        try:
            with np.errstate(all="ignore"):
                check(case)
        except Exception as error:
            raise AssertionError(str(case)) from error
