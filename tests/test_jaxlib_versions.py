"""`make test-versions`: finding interpreters, and the summary."""

import sys

import pytest

from tests import jaxlib_versions
from tests.jaxlib_versions import PAIRS, find_python, main


def _script(path, exit_code):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without any Python: a folder on the PATH, and the folder of pyenv."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_python_on_the_path_is_found(machine):
    _script(machine / "bin/python3.12", 0)
    _script(machine / "pyenv/versions/3.12.1/bin/python3.12", 0)
    assert find_python("3.12") == str(machine / "bin/python3.12")


def test_python_of_pyenv_is_found_behind_a_shim_that_fails(machine):
    _script(machine / "bin/python3.13", 127)
    _script(machine / "pyenv/versions/3.13.0/bin/python3.13", 0)
    assert find_python("3.13") == str(machine / "pyenv/versions/3.13.0/bin/python3.13")


def test_python_that_is_not_installed_is_not_found(machine):
    _script(machine / "bin/python3.13", 127)
    assert find_python("3.13") is None


@pytest.mark.parametrize(
    ("installed", "outcome", "code"),
    [(("3.11", "3.13"), "passed", 0), (("3.12",), "failed with exit code 1", 1), ((), "", 1)],
    ids=["some", "failure", "none"],
)
def test_summary_names_skipped_pairs_and_why(monkeypatch, capsys, installed, outcome, code):
    monkeypatch.setattr(jaxlib_versions, "find_python", lambda python: sys.executable if python in installed else None)
    monkeypatch.setattr(jaxlib_versions, "run_pair", lambda *args: outcome)
    assert main([]) == code
    expected = [
        f"Python {python} with jaxlib {jaxlib}: "
        + (outcome if python in installed else f"SKIPPED: there is no python{python} on the PATH or in pyenv")
        for python, jaxlib in PAIRS
    ]
    assert capsys.readouterr().out.splitlines() == expected
