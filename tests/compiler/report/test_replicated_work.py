"""Products that several devices compute are counted once in model flops."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import P
from shardwise.sharding import AbstractMesh, NamedSharding

MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("rows", "columns", "devices"),
    [(P("data"), P(None, "model"), 8), (P("data"), P(), 4), (P(), P(), 1), (P(None, "model"), P("model"), 2)],
)
def test_model_flops_of_a_product(rows, columns, devices):
    """All devices together compute `8 / devices` times the product."""
    x, y = (sw.ShapeDtypeStruct((512, 512), np.float32, sharding=NamedSharding(MESH, spec)) for spec in (rows, columns))
    run = sw.simulate(sw.jit(lambda x, y: x @ y), hardware="h100")(x, y)
    assert run.flops == 2 * 512**3 / devices
    assert run.model_flops == 2 * 512**3 / 8


def test_replicated_products_in_manual_regions_and_loops():
    """A loop in a region that is manual over `data`: `model` shards nothing."""
    spec = NamedSharding(MESH, P("data"))
    x = sw.ShapeDtypeStruct((512, 64), np.float32, sharding=spec)

    def loop(x):
        return sw.lax.fori_loop(0, 3, lambda _, x: x @ x.T @ x, x)

    region = sw.shard_map(loop, mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    run = sw.simulate(sw.jit(region), hardware="h100")(x)
    assert run.flops == 2 * 3 * 2 * 128 * 128 * 64
    assert run.model_flops == run.flops / 2
