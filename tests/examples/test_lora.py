"""Low-rank adapters for a model from a safetensors file."""

import gpt
import lora
import numpy as np
import pytest

import shardwise as sw
from shardwise import checkpoints
from shardwise.errors import CheckpointMismatch

STEPS = 4
pytestmark = pytest.mark.slow


def train(folder, *options):
    return lora.main(["--folder", str(folder), "--steps", str(STEPS), "--base-steps", "4", *options])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a base model and adapters: the folder, the state and the losses."""
    folder = tmp_path_factory.mktemp("lora")
    return folder, *train(folder)


def test_losses_fall_and_the_files_exist(run):
    folder, _, losses = run
    assert len(losses) == STEPS and losses[-1] < losses[0]
    names = {path.name for path in folder.iterdir()}
    assert names == {"base", "base.safetensors", "checkpoints", "loss.png", "plan.html"}


def test_base_is_read_from_the_file_in_shards(run, mesh):
    folder, *_ = run
    arrays = checkpoints.read_safetensors(folder / "base.safetensors")
    base = lora.read_base(folder / "base.safetensors", mesh)
    np.testing.assert_array_equal(base["layers"][0]["up"], arrays["layers.0.up"])
    assert base["layers"][0]["up"].addressable_shards[0].data.shape == (gpt.WIDTH, gpt.HIDDEN // 2)


def test_checkpoints_have_the_adapters_only(run):
    folder, state, _ = run
    manifest = checkpoints.read_manifest(folder / "checkpoints" / f"step-{STEPS}")
    assert len(manifest.arrays) == len(sw.tree.leaves(state)) == 3 * 2 * len(lora.ADAPTED) * gpt.LAYERS + 1


def test_training_begins_at_the_base_model(mesh):
    params, adapters = gpt.init_params(sw.random.key(0)), lora.init_adapters(sw.random.key(1))
    sw.tree.map(np.testing.assert_array_equal, lora.adapted(params, adapters), params)


def test_file_of_another_model(run, mesh, monkeypatch):
    folder, *_ = run
    monkeypatch.setattr(gpt, "HIDDEN", 128)
    with pytest.raises(CheckpointMismatch, match=r"'layers.0.up' has shape \(64, 128\) in the model, and \(64, 256\)"):
        lora.read_base(folder / "base.safetensors", mesh)
    monkeypatch.setattr(gpt, "LAYERS", 2)
    monkeypatch.setattr(gpt, "HIDDEN", 256)
    with pytest.raises(CheckpointMismatch, match=r"'layers.1.up' has shape \(64, 256\) in the model, and is not"):
        lora.read_base(folder / "base.safetensors", mesh)


def test_resumption_on_another_mesh_has_the_losses_of_one_device(run, tmp_path):
    base = ["--base", str(run[0] / "base.safetensors")]
    expected = train(tmp_path / "one", *base, "--devices", "1")[1]
    train(tmp_path / "many", *base, "--steps", "2")
    losses = train(tmp_path / "many", *base, "--mesh", "data=1,model=4")[1]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
