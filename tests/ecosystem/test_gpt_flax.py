"""The example of a GPT with Flax NNX and Optax: one and eight devices, and a resumption on another mesh."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise import checkpoints

ROOT = Path(__file__).resolve().parents[2]


def train(folder, steps, *options):
    """Run the example in a process of its own; return the losses and what it prints."""
    command = [sys.executable, "-W", "ignore", ROOT / "examples/gpt_flax.py", "--folder", folder, "--steps", steps]
    process = subprocess.run(
        [*map(str, command), *options],
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    manifest = checkpoints.read_manifest(folder / "checkpoints" / f"step-{steps}")
    return manifest.metadata["metadata"]["losses"], process.stdout


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), 6, "--devices", "1")[0]


def test_resumption_on_another_mesh_has_the_losses_of_one_device(tmp_path, one_device):
    train(tmp_path, 3, "--mesh", "data=4,model=2")
    losses, printed = train(tmp_path, 6, "--mesh", "data=1,model=4")
    np.testing.assert_allclose(losses, one_device, rtol=1e-4)
    assert losses[-1] < losses[0] - 1 and "continue after step 3" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "loss.png", "plan.html"}


def test_collectives_are_those_of_the_plain_functions(tmp_path):
    _, printed = train(tmp_path, 1, "--mesh", "data=4,model=2")
    assert "19 all_reduce over data" in printed and "11 all_reduce over model" in printed
