"""The setting `jax_compatibility = "exact"`: every row of the table of differences is as in JAX, and only with it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardwise as sw
from tests.exact_rows import ROWS, outcome

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "from-jax.md"
# The rows that `ROWS` does not have.
DEVICES, FAILURES = "devices on a CPU", "a process that dies"
SECOND_DERIVATIVES = "second derivatives of a `custom_jvp` function in a `scan`"


def run_python(*arguments, **variables):
    """Return what a Python process prints, with these environment variables."""
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "SHARDWISE_"))}
    run = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT, env=unset | variables
    )
    return run.stdout


@pytest.fixture(scope="module")
def exact_outcomes():
    """What JAX and Shardwise do in exact mode, for every program of every row."""
    printed = run_python("-m", "tests.exact_rows", SHARDWISE_JAX_COMPATIBILITY="exact", JAX_NUM_CPU_DEVICES="8")
    return json.loads(printed)


def test_every_row_has_programs():
    section = PAGE.read_text().partition("## Differences")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w.*?) \|", section, re.MULTILINE)
    assert set(rows) == {*ROWS, DEVICES, FAILURES, SECOND_DERIVATIVES}


@pytest.mark.parametrize("row", ROWS)
def test_programs_are_as_in_jax(exact_outcomes, row):
    programs = exact_outcomes[row]
    assert {name: ours for name, (_, ours) in programs.items()} == {name: jax for name, (jax, _) in programs.items()}


@pytest.mark.filterwarnings("ignore:argument x of:UserWarning")  # it is resharded
@pytest.mark.filterwarnings("ignore:Mesh got a flat list:UserWarning")
@pytest.mark.parametrize("row", ROWS)
def test_a_program_differs_without_the_switch(exact_outcomes, row):
    extended = {name: json.loads(json.dumps(outcome(sw, program))) for name, program in ROWS[row].items()}
    assert extended != {name: jax for name, (jax, _) in exact_outcomes[row].items()}


def test_number_of_devices(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, jax\nprint(len(jax.devices()), jax.typeof(jax.numpy.ones(2)), sys.argv[1:])\n")
    arguments = (str(script), "--exact")  # an argument of the script
    assert run_python(*arguments) == "1 float32[2] ['--exact']\n"
    assert run_python("-m", "shardwise", "run", "--exact", *arguments) == "1 float32[2] ['--exact']\n"
