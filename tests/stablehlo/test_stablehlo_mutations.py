"""A slice of the campaign of mutated modules. `make mutations` runs all of it."""

import pytest

pytest.importorskip("jax")
mutate = pytest.importorskip("tests.stablehlo.mutate")

pytestmark = pytest.mark.jax


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.slow)], ids=["20", "600"])
def test_mutated_modules_are_typed_errors_or_right(seeds):
    outcomes = list(mutate.run_cases(seeds))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    assert {"typed error", "equal results"} <= {outcome.kind for outcome in outcomes}


@pytest.mark.parametrize(("program", "outcome"), [("import os; os.abort()", "equal results"), ("", "crash")])
def test_a_case_runs_again_if_the_parser_corrupted_the_heap(monkeypatch, program, outcome):
    answers = iter(["typed error", "crash", "equal results"])
    monkeypatch.setattr(mutate, "corpus", dict)
    monkeypatch.setattr(mutate, "mutated", lambda seed, modules: ("a program", b""))
    monkeypatch.setattr(mutate.parser, "ISOLATED_PROGRAM", program)
    monkeypatch.setattr(mutate._Worker, "_answer", lambda self, seed, module: (next(answers), "run"))
    assert [each.kind for each in mutate.run_cases(range(2))] == ["typed error", outcome]
