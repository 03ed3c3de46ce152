"""The GPT of plain functions: its training, its resumption on other meshes, and its collectives."""

import re
import subprocess
import sys
from pathlib import Path

import gpt
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import StrategyError

STEPS = 6
ROOT = Path(__file__).parents[2]


def train(folder, *options):
    return gpt.main(["--folder", str(folder), "--steps", str(STEPS), *options])


@pytest.mark.slow
def test_eight_devices_and_a_resumption_on_one_have_the_losses_of_one(tmp_path):
    state, first = train(tmp_path / "many", "--mesh", "data=4,model=2", "--steps", "3")
    assert state["mean"]["layers"][0]["up"].addressable_shards[0].data.shape == (gpt.WIDTH, gpt.HIDDEN // 2)
    page = (tmp_path / "many" / "plan.html").read_text(encoding="utf-8")
    assert "train_step" in page and "all_reduce" in page
    state, losses = train(tmp_path / "many", "--devices", "1")
    assert losses[:3] == first and float(state["count"]) == STEPS
    _, expected = train(tmp_path / "one", "--devices", "1")
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert len(losses) == STEPS and losses[-1] < losses[0] - 1
    assert {path.name for path in (tmp_path / "many").iterdir()} == {"checkpoints", "loss.png", "plan.html"}


@pytest.mark.slow
def test_the_script_prints_the_plan_that_the_page_shows(tmp_path):
    command = [sys.executable, str(ROOT / "examples/gpt.py"), "--steps", "1", "--folder", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    page = (ROOT / "docs/examples.md").read_text()
    shown = re.search(r"^train_step on mesh.*?(?=^step)", page, re.DOTALL | re.MULTILINE)
    assert shown[0] in run.stdout


@pytest.mark.slow
def test_resumption_on_another_mesh_has_the_losses_of_eight_devices(tmp_path):
    _, expected = train(tmp_path / "one")
    train(tmp_path / "two", "--steps", "3")
    np.testing.assert_allclose(train(tmp_path / "two", "--mesh", "data=1,model=4")[1], expected, rtol=1e-4)


def test_collectives(mesh):
    with gpt.batches(mesh) as batches:
        plan = gpt.train_step.lower(gpt.init_state(mesh), next(batches)).plan
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
