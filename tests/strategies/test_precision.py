"""Mixed precision casts each weight once."""

import re

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import strategies
from shardwise.errors import StrategyError
from tests.strategies.mlp import PARAMS, X, Y, close, loss_of, on_mesh


def test_mixed_precision_casts_each_weight_once(mesh):
    half = strategies.mixed_precision(loss_of)
    expected = sw.value_and_grad(loss_of)(PARAMS, X, Y)
    found = sw.value_and_grad(half)(PARAMS, X, Y)
    assert all(leaf.dtype == jnp.float32 for leaf in sw.tree.leaves(found))
    close(found, expected, rtol=0.05, atol=2e-4)
    args = on_mesh(mesh, "data")
    for step in (sw.value_and_grad(half), strategies.accumulate_gradients(sw.value_and_grad(half), 4)):
        lowered = sw.jit(step).lower(*args)
        casts = re.findall(r"stablehlo.convert.*\(tensor<(8x64|16x32)xf32>\) -> tensor<\1xbf16>", lowered.as_text())
        assert sorted(casts) == ["16x32", "8x64"]  # the shards of the two weights
        gathers = [row for row in lowered.plan.collectives if row.kind == "all_gather"]
        assert gathers and all(row.type.startswith("bf16") for row in gathers)
        close(sw.jit(step)(*args), expected, rtol=0.05, atol=2e-4)
    # FSDP gathers the weights of all microbatches once, after the cast: each device gets 3/4 of their bfloat16 bytes.
    assert sum(row.sent * row.times for row in gathers) == sum(p.size for p in PARAMS.values()) * 2 * 3 / 4


@pytest.mark.parametrize(
    "policy", [jnp.bfloat16, "bfloat16", strategies.FP8Policy, lambda: None], ids=["dtype", "name", "class", "function"]
)
def test_wrong_policies_are_errors(policy):
    with pytest.raises(StrategyError, match="the second argument must be a PrecisionPolicy or an FP8Policy"):
        strategies.mixed_precision(loss_of, policy)
