"""What type checkers infer of programs that use the package: `tests/user_types/`."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copy

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests/user_types/program.py"
MISTAKES = ROOT / "tests/user_types/mistakes.py"


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


@pytest.mark.parametrize("checker", [mypy_errors, pyright_errors])
def test_checkers_infer_types_and_report_mistakes(checker, tmp_path):
    errors = checker(tmp_path)
    assert [error for error in errors if error[0] == PROGRAM.name] == []
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    expected = {line for line, text in lines if text.endswith("# mistake")}
    assert {line for file, line, _ in errors if file == MISTAKES.name} == expected
