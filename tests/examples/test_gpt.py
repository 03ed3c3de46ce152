"""The GPT of plain functions: its training, its resumption on other meshes, and its collectives."""

import gpt
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import StrategyError

STEPS = 6


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """The losses of an uninterrupted run on one device."""
    folder = tmp_path_factory.mktemp("one")
    return gpt.main(["--devices", "1", "--steps", str(STEPS), "--folder", str(folder)])[1]


def test_losses_fall(one_device):
    assert len(one_device) == STEPS and one_device[-1] < one_device[0] - 1


def test_resumption_on_another_mesh_has_the_losses_of_one_device(tmp_path, one_device):
    folder = ["--folder", str(tmp_path)]
    gpt.main(["--mesh", "data=4,model=2", "--steps", "3", *folder])
    state, losses = gpt.main(["--mesh", "data=1,model=4", "--steps", str(STEPS), *folder])
    np.testing.assert_allclose(losses, one_device, rtol=1e-4)
    assert float(state["count"]) == STEPS
    assert state["mean"]["layers"][0]["up"].addressable_shards[0].data.shape == (gpt.WIDTH, gpt.HIDDEN // 4)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "loss.png", "plan.html"}
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "train_step" in page and "all_reduce" in page


def test_collectives(mesh):
    plan = gpt.train_step.lower(gpt.init_state(mesh), gpt.batch(0, mesh)).plan
    along_data = [row for row in plan.collectives if row.axes == ("data",)]
    assert all(row.kind == "all_reduce" for row in along_data)
    parameters = sw.tree.leaves(sw.eval_shape(gpt.init_params, sw.random.key(0)))
    assert len(along_data) == len(parameters)  # one sum for each gradient
    # Each layer: the results of attention and of the MLP, and the cotangents of their inputs; and one of the logits.
    activations = [row for row in plan.collectives if row.type == f"f32[{gpt.BATCH // 4},{gpt.LENGTH},{gpt.WIDTH}]"]
    assert len([row for row in activations if row.axes == ("model",)]) == 4 * gpt.LAYERS + 1


def test_mesh_that_does_not_divide_the_model(tmp_path):
    with pytest.raises(StrategyError, match=r"'embed'.*64.*3"):
        gpt.main(["--mesh", "data=2,model=3", "--folder", str(tmp_path)])
