"""The examples, one of which is `make demo`: their collectives, and their training compared with one device."""

import numpy as np
import pytest

import shardwise as sw
from examples import mlp, transformer
from shardwise.sharding import NamedSharding


def test_forward_pass_of_an_mlp_needs_one_all_reduce(mesh, capsys):
    params, x, _ = mlp.shard(mesh, mlp.initial_params(), *mlp.batch())
    plan = sw.explain(mlp.predict)(params, x)
    assert plan.counts() == {"all_reduce": 1}
    (row,) = plan.collectives
    assert row.axes == ("model",)
    assert row.sent == 2 * (8 * mlp.OUTPUTS * 4) * (2 - 1) / 2  # a shard of 8 × 4 floats, by the ring model
    assert row.source.file.endswith("mlp.py")
    assert row.reason == (
        f"dot at mlp.py:{row.source.line} leaves an unreduced sum over 'model'; "
        f"add at mlp.py:{row.source.line} needs it reduced"
    )
    printed = capsys.readouterr().out
    assert "predict on mesh data=4, model=2: 1 collective, 128 B sent per device" in printed
    assert "in  `params['w1']`           f32[16,64]       P(None, 'model')             16×32 per device" in printed


def test_training_an_mlp_on_eight_devices_matches_one_device(mesh):
    sharded = mlp.shard(mesh, mlp.initial_params(), *mlp.batch())
    many, losses = mlp.train(*sharded, steps=20)
    one, expected = mlp.train(mlp.initial_params(), *mlp.batch(), steps=20)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[-1] < losses[0] / 2
    for name, array in many.items():
        assert array.sharding == sharded[0][name].sharding  # parameters keep their shardings
        np.testing.assert_allclose(array, one[name], rtol=1e-4, atol=1e-6)


def test_training_step_of_an_mlp_all_reduces_each_gradient_once(mesh):
    plan = sw.explain(mlp.train_step)(*mlp.shard(mesh, mlp.initial_params(), *mlp.batch()))
    assert plan.counts() == {"all_reduce": 6}
    along_data = sorted(row.type for row in plan.collectives if row.axes == ("data",))
    assert along_data == sorted(["f32[16,32]", "f32[32]", "f32[32,4]", "f32[4]", "f32[]"])  # four gradients, the loss


def test_mlp_runs(capsys):
    mlp.main()
    printed = capsys.readouterr().out
    assert "every loss and parameter equals that of the one-device run" in printed
    assert "CPU 0,2,4,6" in printed


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run `make demo` for a few steps: the trained state, the losses, its folder."""
    folder = tmp_path_factory.mktemp("demo")
    state, losses = transformer.main(steps=12, folder=folder)
    return state, losses, folder


def test_demo_learns_and_writes_a_plan_and_a_plot(demo):
    _, losses, folder = demo
    assert len(losses) == 12 and losses[-1] < losses[0] - 1
    page = (folder / "plan.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "train_step" in page and "all_reduce" in page
    picture = (folder / "loss.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n") and len(picture) > 10_000


def test_demo_keeps_the_shardings_of_its_state(demo, mesh):
    (params, means, squares, count), _, _ = demo
    assert float(count) == 12
    for tree in (params, means, squares):
        unchanged = sw.tree.map(lambda x, spec: x.sharding == NamedSharding(mesh, spec), tree, transformer.LAYOUTS)
        assert all(sw.tree.leaves(unchanged))


def test_demo_fails_if_losses_differ(tmp_path, monkeypatch):
    original = transformer.train

    def train_with_error(state, steps, sharding=None, show=lambda loss: None):
        state, losses = original(state, steps, sharding, show)
        return state, [loss * (1.0 if sharding is None else 1.01) for loss in losses]

    monkeypatch.setattr(transformer, "train", train_with_error)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        transformer.main(steps=2, folder=tmp_path)


def test_collectives_of_the_demo(mesh):
    state = transformer.shard(mesh, transformer.initial_state(transformer.initial_params()))
    tokens = sw.device_put(next(transformer.batches(1)), NamedSharding(mesh, transformer.BATCHES))
    plan = transformer.train_step.lower(*state, tokens).plan
    gradients = len(sw.tree.leaves(state[0]))
    along_data = [row for row in plan.collectives if row.axes == ("data",)]
    assert len(along_data) == gradients and all(row.kind == "all_reduce" for row in along_data)
    # Each layer: the results of attention and of the hidden layer, and the cotangents of their inputs.
    rows = transformer.BATCH // 4
    activations = [
        row for row in plan.collectives if row.type == f"f32[{rows},{transformer.LENGTH},{transformer.WIDTH}]"
    ]
    assert (
        len([row for row in activations if row.axes == ("model",)]) == 4 * transformer.LAYERS + 1
    )  # and one of the logits
