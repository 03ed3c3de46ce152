"""What type checkers infer of programs that use the package: `tests/user_types/`."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from shutil import copy
from typing import Any, get_overloads

import pytest

from shardwise import lax, nn, numpy, ops, random, scipy
from tests.test_examples import public

NAMESPACES = [numpy, numpy.linalg, numpy.fft, lax, lax.linalg, nn, ops, random, scipy.linalg, scipy.special]
ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests/user_types/program.py"
MISTAKES = ROOT / "tests/user_types/mistakes.py"

# Functions whose results depend on the functions that they call, or on the values of arguments.
OF_FUNCTIONS = """associative_scan cond custom_linear_solve custom_root fori_loop map platform_dependent reduce
reduce_window stage switch while_loop apply_along_axis fromfunction"""
OF_VALUES = """dtype finfo iinfo shape_as_value sort gradient eigh_tridiagonal expm_frechet funm hessenberg key_dtype
all_gather_start all_to_all_start ppermute_start psum_scatter_start psum_start"""


def mypy_errors(tmp_path):
    """Return the errors of mypy, with the options and the cache of this project, as (file name, line, message)."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--output=json", PROGRAM, MISTAKES],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    reports = map(json.loads, run.stdout.splitlines())
    return [(Path(r["file"]).name, r["line"], r["message"]) for r in reports if r["severity"] == "error"]


def pyright_errors(tmp_path):
    """Return the errors of pyright, with its default options, as (file name, line, message)."""
    for file in (PROGRAM, MISTAKES):
        copy(file, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    return [
        (Path(r["file"]).name, r["range"]["start"]["line"] + 1, r["message"])
        for r in report["generalDiagnostics"]
        if r["severity"] == "error"
    ]


def test_program_runs():
    run = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.table(default=1)
@pytest.mark.parametrize("checker", [mypy_errors, pyright_errors])
def test_checkers_infer_types_and_report_mistakes(checker, tmp_path):
    errors = checker(tmp_path)
    assert [error for error in errors if error[0] == PROGRAM.name] == []
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    expected = {line for line, text in lines if text.endswith("# mistake")}
    assert {line for file, line, _ in errors if file == MISTAKES.name} == expected


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda namespace: namespace.__name__)
def test_functions_declare_their_results(namespace):
    undeclared = {
        name
        for name, function in public(namespace)
        if inspect.isfunction(source := inspect.unwrap(function))
        and source.__annotations__.get("return", Any) is Any
        and not get_overloads(source)
    }
    assert undeclared <= {*OF_FUNCTIONS.split(), *OF_VALUES.split()}
