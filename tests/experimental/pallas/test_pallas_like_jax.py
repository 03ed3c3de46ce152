"""The kernels of JAX's wheel, unmodified, on Shardwise and in JAX's interpret mode: results and gradients."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.experimental.pallas.jax_kernels import CASES

pytestmark = pytest.mark.jax
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("jax_kernels.py")


def results(library: str, name: str, folder: Path) -> dict[str, np.ndarray]:
    file = folder / f"{library}.npz"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), library, str(file), name]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    with np.load(file) as arrays:
        return dict(arrays)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("name", list(CASES))
def test_kernel_of_jax_equals_its_interpret_mode(name, tmp_path):
    own, expected = (results(library, name, tmp_path) for library in ("shardwise", "jax"))
    assert own.keys() == expected.keys()
    for key, value in expected.items():
        # The order of sums may differ: 1e-6 of the largest element, also where products are of bfloat16.
        np.testing.assert_allclose(own[key], value, rtol=0, atol=1e-6 * np.nanmax(np.abs(value)), err_msg=key)
