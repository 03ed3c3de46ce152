"""Flax models in float8 on Shardwise: layers with a `dot_general` of their own, whose products are in float8."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reports():
    """Return the reports of `train_in_float8.py` by the kind of model."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "shardwise", "run", "tests/ecosystem/train_in_float8.py"]
    process = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, timeout=600)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    lines = [json.loads(line) for line in process.stdout.decode().splitlines()]
    return {line["kind"]: line for line in lines}


KINDS = ["linen", "nnx"]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_close_to_those_of_float32(reports, kind):
    fp8, exact = reports[kind]["float8"], reports[kind]["float32"]
    assert fp8[-1] < fp8[0] / 10
    np.testing.assert_allclose(fp8, exact, rtol=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_products_with_the_layers_weights_are_in_float8(reports, kind):
    products = [name.removeprefix("params/").removesuffix("/value") for name in reports[kind]["products"]]
    assert products == ["down/kernel", "up/kernel"]  # the head stays in bfloat16
    assert "matrix products: 8, of which 5 in float8" in reports[kind]["plan"]  # two forward, one and two backward
    assert reports[kind]["reduced maxima"] == ["f32[6]"]
