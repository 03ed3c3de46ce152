"""inside_jax.jit in several processes of real JAX: all plan the same program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tests.inside_jax.steps import arguments, step  # noqa: E402
from tests.process_faults.groups import free_port  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("count", [2, 4])
def test_processes_agree(count):
    port = str(free_port())
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.inside_jax.process_worker", str(rank), str(count), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**unset, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(count)
    ]
    outputs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count, outputs
    said = [json.loads(out[out.index('{"module"') :].splitlines()[0]) for out, _ in outputs]
    assert all(each == said[0] for each in said)
    expected = jax.jit(step)(*arguments())
    np.testing.assert_allclose(said[0]["loss"], expected[2], rtol=2e-5)
    np.testing.assert_allclose(said[0]["sums"], [abs(x).sum() for x in expected], rtol=2e-5)
