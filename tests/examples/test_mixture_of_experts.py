"""The GPT with mixtures of experts."""

import mixture_of_experts
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import StrategyError

STEPS = 4


def train(folder, *options):
    return mixture_of_experts.main(["--folder", str(folder), "--steps", str(STEPS), *options])


@pytest.mark.slow
def test_losses_fall_and_experts_are_sharded(tmp_path, capsys):
    state, losses = train(tmp_path)
    assert losses[-1] < losses[0] - 0.5
    experts = state["params"]["layers"][0]["experts"]["up"]
    assert experts.addressable_shards[0].data.shape[0] == mixture_of_experts.EXPERTS // 2
    # Dispatch and combine, in the forward and in the backward pass.
    assert "4 ragged_all_to_all over expert" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "loss.png", "plan.html"}


@pytest.mark.slow
def test_resumption_on_another_mesh_has_the_losses_of_one_device(tmp_path):
    expected = train(tmp_path / "one", "--devices", "1")[1]
    train(tmp_path / "many", "--steps", "2")
    losses = train(tmp_path / "many", "--mesh", "data=2,expert=4")[1]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_devices_that_do_not_divide_the_experts():
    with pytest.raises(StrategyError, match=r"experts/.*8.*3"):
        mixture_of_experts.init_state(sw.make_mesh((2, 3), ("data", "expert")))
