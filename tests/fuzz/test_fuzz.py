"""Random programs on random meshes in random layouts. `python -m tests.fuzz.run` runs more of them."""

import pytest

from tests.fuzz.check import check, random_case

BLOCK = 20  # cases of one test


@pytest.mark.parametrize("first", range(0, 200, BLOCK))
def test_simulation_equals_one_device(first):
    for seed in range(first, first + BLOCK):
        case = random_case(seed)
        try:
            check(case)
        except Exception as error:
            raise AssertionError(str(case)) from error


@pytest.mark.parametrize("first", range(1000, 1030, 5))
def test_devices_equal_one_device(first):
    for seed in range(first, first + 5):
        case = random_case(seed)
        try:
            check(case, on_devices=True)
        except Exception as error:
            raise AssertionError(str(case)) from error
