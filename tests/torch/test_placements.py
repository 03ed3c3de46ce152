"""Placements of DTensor and specs, both ways. The rule of DTensor's shards is written here; DTensor does not run."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import shardwise as jax
from shardwise import NamedSharding, P, strategies
from shardwise.errors import StrategyError
from shardwise.torch import functional, parallelize_plan, placements_to_spec, plan_rules, spec_to_placements

MESH = ("data", "model")


@pytest.mark.parametrize(
    ("placements", "spec"),
    [
        ([Shard(0), Shard(1)], P("data", "model")),
        ([Shard(0), Shard(0)], P(("data", "model"), None)),
        ([Replicate(), Shard(1)], P(None, "model")),
        ([Shard(-1), Replicate()], P(None, "data")),
        ([Partial(), Replicate()], P(None, None, unreduced={"data"})),
        ([Replicate(), Replicate()], P(None, None)),
    ],
    ids=str,
)
def test_specs_of_placements(placements, spec):
    assert placements_to_spec(placements, MESH, 2) == spec
    back = spec_to_placements(spec, MESH)
    assert placements_to_spec(back, MESH, 2) == spec


@pytest.mark.parametrize("placements", list(itertools.product([Shard(0), Shard(1), Replicate()], repeat=2)), ids=str)
def test_shards_are_those_of_dtensors_rule(placements):
    """DTensor's rule, `chunk`, applied by hand, one mesh dim after the other."""
    mesh = jax.make_mesh((4, 2), MESH)
    values = torch.arange(64).reshape(8, 8)
    array = jax.device_put(values.numpy(), NamedSharding(mesh, placements_to_spec(placements, MESH, 2)))
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    for data, model in itertools.product(range(4), range(2)):
        local = values
        for placement, count, index in zip(placements, (4, 2), (data, model), strict=True):
            local = local if placement.is_replicate() else local.chunk(count, placement.dim)[index]
        assert shards[mesh.devices[data, model]].tolist() == local.tolist()


def test_errors():
    with pytest.raises(StrategyError, match=r"1 placements for the mesh dims \('data', 'model'\)"):
        placements_to_spec([Shard(0)], MESH, 2)
    with pytest.raises(StrategyError, match=r"along 'data' has no spec for a tensor of rank 2"):
        placements_to_spec([Shard(2), Replicate()], MESH, 2)
    with pytest.raises(StrategyError, match=r"along 'model' has no spec"):
        placements_to_spec([Replicate(), Partial("max")], MESH, 2)
    with pytest.raises(StrategyError, match=r"has the axis 'expert'"):
        spec_to_placements(P("expert"), MESH)
    with pytest.raises(StrategyError, match="in another order than the mesh dims"):
        spec_to_placements(P(("model", "data")), MESH)


def test_plans_of_parallelize_module_there_and_back():
    module = nn.ModuleDict(
        {"embedding": nn.Embedding(16, 8), "up": nn.Linear(8, 32), "down": nn.Linear(32, 8), "norm": nn.LayerNorm(8)}
    )
    plan = {"embedding": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    _, params, _ = functional(module)
    mesh = jax.make_mesh((4, 2), MESH)
    shardings = strategies.tensor_parallel(params, mesh, plan_rules(module, plan))
    specs = {name: sharding.spec for name, sharding in strategies.fsdp(params, mesh, "data", base=shardings).items()}
    back = parallelize_plan(module, specs)
    assert {path: type(style) for path, style in back.items()} == {path: type(style) for path, style in plan.items()}
    with pytest.raises(StrategyError, match=r"'norm\.weight' of LayerNorm is sharded"):
        parallelize_plan(module, {"norm.weight": P("model")})
    with pytest.raises(StrategyError, match=r"'up\.weight' with .* is neither columnwise nor rowwise"):
        parallelize_plan(nn.ModuleDict({"up": nn.Linear(2, 2)}), {"up.weight": P("model", "model")})
