"""A slice of the campaign of mutated modules. `make mutations` runs all of it."""

import pytest

pytest.importorskip("jax")
mutate = pytest.importorskip("tests.stablehlo.mutate")

pytestmark = pytest.mark.jax


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.slow)], ids=["20", "600"])
def test_mutated_modules_are_typed_errors_or_right(seeds):
    outcomes = list(mutate.run_cases(seeds))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    assert {"typed error", "equal results"} <= {outcome.kind for outcome in outcomes}
