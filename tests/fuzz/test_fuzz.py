"""A few random programs on random meshes with random shardings. `python -m tests.fuzz.run` runs more."""

from itertools import count, islice

import pytest

from tests.fuzz.check import check, random_case

BLOCK = 20  # cases per test


@pytest.mark.table(default=1)
@pytest.mark.parametrize("first", range(0, 200, BLOCK))
def test_simulation_matches_one_device(first):
    for seed in range(first, first + BLOCK):
        case = random_case(seed)
        try:
            check(case)
        except Exception as error:
            raise AssertionError(str(case)) from error


@pytest.mark.table(default=1)
@pytest.mark.parametrize("first", range(1000, 1030, 5))
def test_devices_match_one_device(first):
    for seed in range(first, first + 5):
        case = random_case(seed)
        try:
            check(case, on_devices=True)
        except Exception as error:
            raise AssertionError(str(case)) from error


def test_top_k_of_zeros_with_different_signs_matches_one_device():
    check(random_case(731000049), on_devices=True)


def test_a_program_whose_mesh_another_layout_refines():
    check(random_case(2101000451), on_devices=True)


@pytest.mark.slow
def test_a_second_compilation_without_optimizations_matches_one_device():
    check(random_case(1000), compile_twice=True)


@pytest.mark.slow
def test_nested_loops_that_accumulate_match_one_device():
    """Sums that are stacked by an inner loop and added up by an outer one, with every kind of plan."""
    cases = (random_case(seed) for seed in count(3000))
    accumulating = (case for case in cases if any(step.kind == "accumulate" for step in case.recipe.all_steps))
    for case in islice(accumulating, 12):
        try:
            check(case)
        except Exception as error:
            raise AssertionError(str(case)) from error
