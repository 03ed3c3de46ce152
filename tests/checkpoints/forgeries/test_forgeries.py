"""A slice of the campaign of damaged and forged files. `make forgeries` runs all of it."""

import pytest

from tests.checkpoints.forgeries.campaign import case, run_cases
from tests.checkpoints.forgeries.damage import DAMAGE
from tests.checkpoints.forgeries.formats import FORMATS


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 400), marks=pytest.mark.slow)], ids=["25", "400"])
def test_damaged_and_forged_files_are_typed_errors_or_harmless(seeds, tmp_path):
    failures = [outcome for outcome in run_cases(seeds, tmp_path) if not outcome.passed]
    assert not failures


def test_cases_cover_all_formats_and_all_damage():
    cases = {case(seed) for seed in range(5000)}
    assert cases == {(name, position) for name in FORMATS for position in range(len(DAMAGE[name]))}
