"""The scenarios of `benchmarks.gpu_plugin`, as far as they need no GPU."""

import json

import pytest

from benchmarks.gpu_plugin import SCENARIOS, entry_point, namespace_module, outcome_problems, run
from benchmarks.gpu_plugin_worker import checks, run_check
from shardwise import devices
from shardwise.runtime.plugins.discovery import plugin_modules

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
STATE = {"device": "gpu:0", "platforms": ["cuda"], "version": "cuda 13", "jax_modules": ["jax._src.sharding_impls"]}
ROW = {"check": "jit", "ok": True, "error": "0.0"}


def test_checks_pass_on_the_cpu():
    rows = [run_check(name, check) for name, check in checks(devices("cpu")[1])]
    assert [row for row in rows if not row["ok"]] == []
    assert {"jit", "grad", "matmul", "cholesky", "callback"} <= {row["check"] for row in rows}


def test_a_wrong_result_and_an_exception_are_failures():
    (name, _), *_ = checks(devices("cpu")[0])
    row = run_check(name, lambda: 1.0)
    assert not row["ok"]
    row = run_check(name, lambda: 1 / 0)
    assert row["error"] == "ZeroDivisionError: division by zero" and "line" in row["traceback"]


def test_fake_packages_are_found(tmp_path, monkeypatch):
    entry_point("renamed", 700)(tmp_path, "/lib/cuda.so")
    namespace_module("other", 700)(tmp_path, "/lib/cuda.so")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(plugin_modules()) == ["jax_plugins.other", "maker_of_renamed"]


def test_a_broken_library_that_is_requested():
    assert run(BY_NAME["broken and requested"], "/lib/cuda.so") == []


@pytest.mark.slow
def test_a_library_that_fails_is_a_problem_with_diagnostics():
    problems = run(BY_NAME["variable"], "/nowhere/cuda.so")
    assert problems[0] == "the process failed"
    assert any("/nowhere/cuda.so, from PJRT_NAMES_AND_LIBRARY_PATHS) cannot be used" in line for line in problems)


@pytest.mark.parametrize(
    ("state", "rows", "err", "problem"),
    [
        ({}, [ROW], "", None),
        ({"platforms": ["cpu"]}, [ROW], "", "platforms ['cpu'], expected ['cuda']"),
        ({"jax_modules": ["jax"]}, [ROW], "", "modules of jax in the process: ['jax']"),
        ({}, [ROW], "x.py:1: UserWarning: something", "an unexpected warning"),
        ({}, [{**ROW, "ok": False, "error": "7.0"}], "", "check jit: 7.0"),
    ],
    ids=["ok", "platforms", "jax", "warning", "check"],
)
def test_outcomes_are_compared(state, rows, err, problem):
    out = "\n".join(map(json.dumps, [{**STATE, **state}, *rows]))
    assert outcome_problems(BY_NAME["installed plugin"], 0, out, err) == ([] if problem is None else [problem])
