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
