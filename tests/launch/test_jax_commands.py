"""`shardwise explain --inside-jax` and `shardwise advise`: scripts that run on real JAX."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
import sys
import jax
from tests.inside_jax import steps
print("arguments", sys.argv[1:], jax.__name__, jax.jit.__module__)
jax.jit(steps.step)(*steps.arguments())
"""


def shardwise(tmp_path, *arguments, source=SCRIPT):
    script = tmp_path / "train.py"
    script.write_text(source)
    given = [str(script) if argument == "SCRIPT" else argument for argument in arguments]
    return subprocess.run(
        [sys.executable, "-m", "shardwise", *given],
        capture_output=True,
        check=False,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "8"},
    )


def test_explain_prints_the_plans_of_a_script(tmp_path):
    run = shardwise(tmp_path, "explain", "SCRIPT", "--inside-jax", "--", "--steps", "3")
    assert run.returncode == 0, run.stderr
    assert "arguments ['--steps', '3'] jax jax._src.api" in run.stdout
    assert "step on mesh data=4, model=2: 4 collectives" in run.stdout
    assert "JAX's own program sends" in run.stdout


@pytest.mark.slow
def test_advise_prints_changes_with_their_savings(tmp_path):
    run = shardwise(tmp_path, "advise", "SCRIPT", "--hardware", "h100")
    assert run.returncode == 0, run.stderr
    assert "JAX compiled 1 function for several devices" in run.stdout


@pytest.mark.slow
def test_the_summary_follows_a_script_that_exits(tmp_path):
    run = shardwise(tmp_path, "advise", "SCRIPT", source=f"{SCRIPT}sys.exit(3)\n")
    assert run.returncode == 3, run.stderr
    assert "JAX compiled 1 function for several devices" in run.stdout
    for command in (("advise", "SCRIPT"), ("explain", "SCRIPT", "--inside-jax")):
        run = shardwise(tmp_path, *command, source="import sys\nsys.exit('stopped')\n")
        assert run.returncode == 1
        assert run.stderr == "stopped\n"
        assert "has run, and JAX compiled no function for several devices" in run.stdout


@pytest.mark.slow
def test_a_function_is_no_script(tmp_path):
    run = shardwise(tmp_path, "advise", "train.py:step")
    assert run.returncode == 2
    assert "must be a script" in run.stderr


UNPLANNED = """\
import sys
import jax
from shardwise import inside_jax
from tests.inside_jax import steps
@inside_jax.jit
def exact_exp(x):
    return jax.lax.exp(x, accuracy=jax.lax.Tolerance(1e-5, 0.0, 0))
args = steps.arguments()
print("shape", exact_exp(args[2]).shape)
jax.jit(steps.step)(*args)
sys.exit()
"""


@pytest.mark.slow
def test_a_function_that_cannot_be_planned_is_reported_and_runs_on_jax(tmp_path):
    run = shardwise(tmp_path, "explain", "SCRIPT", "--inside-jax", "--no-advice", source=UNPLANNED)
    assert run.returncode == 2
    assert re.search(
        r"exact_exp cannot be planned.*\n  UnsupportedError: .* 'exp' of JAX at train.py:7 has", run.stdout
    )
    assert "the script goes on with JAX's own program" in run.stdout
    assert "shape (16, 12)" in run.stdout
    assert "step on mesh data=4, model=2: 4 collectives" in run.stdout
    assert "1 of 2 functions cannot be planned: exact_exp" in run.stderr
