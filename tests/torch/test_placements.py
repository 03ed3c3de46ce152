"""Placements of DTensor and specs, both ways. Shards are compared with those of DTensor on ranks of gloo."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.placement_types import _StridedShard

import shardwise as jax
from shardwise import NamedSharding, P, strategies
from shardwise.errors import StrategyError
from shardwise.torch import functional, parallelize_plan, placements_to_spec, plan_rules, spec_to_placements
from tests.torch.gloo_ranks import run_ranks
from tests.torch.placement_ranks import CASES

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


def test_shards_are_those_of_dtensor(tmp_path):
    run_ranks("from tests.torch.placement_ranks import main; main()", 4, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(4)]
    for case, (shape, mesh_shape, placements) in enumerate(CASES):
        names = MESH[: len(mesh_shape)]
        mesh = jax.make_mesh(mesh_shape, names)
        values = np.arange(shape[0] * shape[1]).reshape(shape)
        array = jax.device_put(values, NamedSharding(mesh, placements_to_spec(placements, names, 2)))
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        for device, local in zip(mesh.devices.flat, (rank[case] for rank in ranks), strict=True):
            assert shards[device].tolist() == local.tolist(), (shape, placements)


def test_errors():
    with pytest.raises(StrategyError, match=r"1 placements for the mesh dims \('data', 'model'\)"):
        placements_to_spec([Shard(0)], MESH, 2)
    with pytest.raises(StrategyError, match=r"along 'data' has no spec for a tensor of rank 2"):
        placements_to_spec([Shard(2), Replicate()], MESH, 2)
    with pytest.raises(StrategyError, match=r"along 'model' has no spec"):
        placements_to_spec([Replicate(), Partial("max")], MESH, 2)
    with pytest.raises(StrategyError, match=r"a strided shard along 'data' of a dim that no other mesh dim shards"):
        placements_to_spec([_StridedShard(0, split_factor=2), Replicate()], MESH, 2)
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
