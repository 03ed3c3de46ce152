"""The MLP: its collectives, and its training compared with one device."""

import numpy as np

import shardwise as sw
from examples import mlp


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
