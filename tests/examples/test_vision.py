"""The conv net on generated images, with FSDP."""

import numpy as np
import pytest
import vision

STEPS = 5


def train(folder, *options):
    return vision.main(["--folder", str(folder), *options])


@pytest.mark.slow
def test_losses_fall_and_the_state_is_sharded(tmp_path, capsys):
    state, losses = train(tmp_path, "--steps", str(STEPS))
    assert losses[-1] < 0.8 * losses[0]
    assert "accuracy on new images: 0." in capsys.readouterr().out
    kernel = state["mean"]["blocks"][1]["second"]
    assert kernel.addressable_shards[0].data.size == kernel.size // 8
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "loss.png", "plan.html"}


@pytest.mark.slow
def test_resumption_on_two_devices_has_the_losses_of_one_device(tmp_path):
    expected = train(tmp_path / "one", "--devices", "1", "--steps", str(STEPS))[1]
    train(tmp_path / "many", "--steps", "3")
    losses = train(tmp_path / "many", "--devices", "2", "--steps", str(STEPS))[1]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_images_depend_on_the_index_and_the_seed():
    first, again, other = (vision.Gratings(10, seed)[3] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first["images"], again["images"])
    assert np.abs(first["images"] - other["images"]).max() > 0.1
