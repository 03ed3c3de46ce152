"""Parts of the time of a call, by cause."""

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.report.time_parts import IDLE, INTERFERENCE, MEMORY, PRODUCTS, time_parts
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.mark.parametrize(("count", "links"), [(8, "within nodes"), (16, "between nodes")])
def test_parts_add_up_to_the_time_and_name_exposed_collectives_with_their_links(count, links):
    mesh = AbstractMesh((count,), ("data",))
    x = sw.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, "data")))
    run = sw.simulate(lambda x: jnp.tanh(x @ x.T), hardware="h100")(x)
    parts = time_parts(run.plan.timeline, run.plan.chip, run.plan.mesh)
    kinds = {f"exposed {kind.replace('_', '-')} {links}" for kind in run.plan.counts()}
    assert set(parts) == {PRODUCTS, MEMORY, IDLE, INTERFERENCE} | kinds and kinds
    assert sum(parts.values()) == pytest.approx(run.seconds)
    assert all(seconds >= 0 for seconds in parts.values())
