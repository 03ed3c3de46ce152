"""Libraries written for JAX give the same results on Shardwise as on JAX, on one device and sharded over eight.

`make test-ecosystem` installs the libraries and runs this; `make test` does not. Every program `programs/GROUP/NAME.py`
runs in processes of its own, in the environment of its group: by `python -m shardwise run` and, on the real jax, by
`python`.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "tests/ecosystem/programs").glob("*/*.py"))


def run(program, devices, *command):
    """Return what a program reports, by name."""
    environment = {
        **os.environ,
        "ECOSYSTEM_DEVICES": str(devices),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": str(ROOT),
    }
    python = ROOT / f".venv-ecosystem-{program.parent.name}/bin/python"
    command = [python, "-W", "ignore", *command, program]
    process = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, timeout=900)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    return dict(json.loads(line) for line in process.stdout.decode().splitlines())


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_results_equal_those_on_jax(program, devices):
    ours, expected = run(program, devices, "-m", "shardwise", "run"), run(program, devices)
    assert ours.keys() == expected.keys() and ours
    for name, value in expected.items():
        if isinstance(value, str) or (isinstance(value, list) and isinstance(value[0], str)):
            assert ours[name] == value, name
        else:
            np.testing.assert_allclose(ours[name], value, rtol=2e-4, atol=2e-5, err_msg=name)
