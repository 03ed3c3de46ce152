"""Flax NNX on Shardwise: reports about a transformer under three kinds of parallelism."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reports():
    """Return the reports of `explain_transformer.py` by kind of parallelism."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "shardwise", "run", "tests/ecosystem/explain_transformer.py"]
    process = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, timeout=600)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    lines = [json.loads(line) for line in process.stdout.decode().splitlines()]
    return {line["kind"]: line for line in lines}


KINDS = ["data parallel", "FSDP", "tensor parallel"]


@pytest.mark.parametrize("kind", KINDS)
def test_explain_shows_all_collectives_of_an_nnx_step(reports, kind):
    """The updates of an `nnx.jit` function are mutations, not results; XLA's program is the oracle."""
    report = reports[kind]
    assert report["sent"] == report["sent by the compiled step"] > 1000
    kinds = {name.replace("_", "-") for name in report["collectives"]}
    assert kinds >= set(report["kinds of the compiled step"])
    expected = {"data parallel": {"all_reduce"}, "FSDP": {"all_reduce", "all_gather", "reduce_scatter"}}
    assert set(report["collectives"]) == expected.get(kind, {"all_reduce"})


@pytest.mark.parametrize("kind", KINDS)
def test_reasons_cite_the_users_lines(reports, kind):
    assert reports[kind]["cited files"] == ["flax_transformer.py"]
    cited = {name for reason in reports[kind]["reasons"] for name in re.findall(r"(\w+\.py):\d+", reason)}
    assert cited == {"flax_transformer.py"}


@pytest.mark.parametrize("kind", KINDS)
def test_initialization_creates_only_shards(reports, kind):
    """No device holds an unsharded copy of a sharded array, and nothing is sent."""
    report = reports[kind]
    assert report["initialization sends"] == 0
    assert report["initialization holds"] < report["shards of the state"] + report["largest array"] / 4
    if kind == "FSDP":
        assert report["shards of the state"] < report["the unsharded state"] / 6


METADATA = """
import json
import jax
import numpy as np
from flax import linen, nnx
import shardwise as sw
from shardwise import strategies

mesh = sw.make_mesh((4, 2), ("data", "model"))
names = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
with nnx.use_eager_sharding(False):
    state = nnx.state(nnx.Linear(8, 16, rngs=nnx.Rngs(0), kernel_init=names))
chosen = strategies.partition_metadata(state, mesh, {"embed": None, "mlp": "model"})
placed = jax.device_put(state, chosen)
boxed = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model"))
variables = linen.Dense(16, kernel_init=boxed).init(jax.random.key(0), np.ones((2, 8), np.float32))
linen_chosen = strategies.partition_metadata(variables, mesh)["params"]
print(json.dumps([
    str(placed["kernel"].get_value().sharding.spec),
    str(placed["bias"].get_value().sharding.spec),
    str(linen_chosen["kernel"].value.spec),
    str(linen_chosen["bias"].spec),
]))
"""


def test_partitioning_metadata_chooses_shardings(tmp_path):
    (tmp_path / "metadata.py").write_text(METADATA)
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error::DeprecationWarning:shardwise", "-m", "shardwise", "run", "metadata.py"]
    process = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, timeout=300)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    assert json.loads(process.stdout) == ["P(None, 'model')", "P()", "P(None, 'model')", "P()"]
