"""`make demo-processes`: the transformer on two processes with four devices each, against one process with eight."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples import transformer
from shardwise.sharding import NamedSharding

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4


def launch(folder, *options):
    command = [
        sys.executable,
        "-m",
        "shardwise",
        "launch",
        "-n",
        "2",
        "--devices-per-process",
        "4",
        "--log-dir",
        folder,
    ]
    script = [ROOT / "examples/transformer_processes.py", "--steps", STEPS, *options]
    return subprocess.run(
        [*map(str, command), *map(str, script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_losses_equal_those_of_one_process(tmp_path, mesh):
    demo = launch(tmp_path, "--losses", tmp_path / "losses.json")
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout.count("every loss equals that of one process alone") == 2
    state = transformer.shard(mesh, transformer.initial_state(transformer.initial_params()))
    _, expected = transformer.train(state, STEPS, NamedSharding(mesh, transformer.BATCHES))
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert len(losses) == STEPS == len(expected)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_makefile_runs_the_demo():
    makefile = (ROOT / "Makefile").read_text()
    assert "shardwise launch -n 2 --devices-per-process 4 examples/transformer_processes.py" in makefile
