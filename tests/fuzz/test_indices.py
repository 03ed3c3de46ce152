"""A few random programs of index ops on devices. `python -m tests.fuzz.indices` runs more."""

import pytest

from tests.fuzz.index_programs import check, random_program

BLOCK = 20  # programs per test

# Programs that failed once: XLA merged two slices, of which one was out of bounds.
FAILED = (201, 287, 348, 534)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("first", range(0, 1000, BLOCK))
def test_index_programs_on_devices_match_numpy(first):
    for seed in range(first, first + BLOCK):
        check(random_program(seed))


@pytest.mark.parametrize("seed", FAILED)
def test_index_programs_that_failed_once(seed):
    check(random_program(seed))
