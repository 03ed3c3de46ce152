"""The comparison of sharding strategies."""

import pytest
import sharding_spmd

import shardwise as sw
from shardwise.errors import StrategyError


@pytest.mark.slow
def test_bytes_of_each_strategy():
    """Memory per device, computed from the shapes of shards."""

    def state_bytes(name):
        _, state = sharding_spmd.make_state(name, 8)
        return sum(x.addressable_shards[0].data.nbytes for x in sw.tree.leaves(state))

    total = state_bytes("data parallel")
    assert total == sum(x.nbytes for x in sw.tree.leaves(sharding_spmd.make_state("data parallel", 1)[1]))
    assert state_bytes("fsdp") < total / 7 and state_bytes("hybrid") < total / 7
    assert total / 4 < state_bytes("tensor parallel") < total / 3


@pytest.mark.slow
def test_all_strategies_have_equal_losses(tmp_path, capsys):
    _, losses = sharding_spmd.main(["--steps", "4", "--strategy", "fsdp", "--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    assert losses[-1] < losses[0] and "equal under all strategies" in printed
    assert all(f"\n{name} " in printed for name in sharding_spmd.STRATEGIES)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "loss.png", "plan.html"}


@pytest.mark.slow
def test_memory_analysis():
    analyses = {name: sharding_spmd.analyze(name, 8) for name in ("data parallel", "fsdp")}
    whole, sharded = analyses["data parallel"], analyses["fsdp"]
    assert sharded["state"] < whole["state"] / 7 and sharded["peak"] < whole["peak"]
    assert "reduce_scatter" in sharded["collectives"] and "reduce_scatter" not in whole["collectives"]


def test_errors():
    with pytest.raises(StrategyError, match="there is no strategy 'zero': choose one of 'data parallel'"):
        sharding_spmd.make_state("zero", 8)
    with pytest.raises(StrategyError, match="2D: 7 devices are not divisible by 2"):
        sharding_spmd.make_state("2D", 7)
