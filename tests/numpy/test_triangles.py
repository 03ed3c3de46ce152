"""Triangles of sharded matrices."""

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.numpy.structure_cases import SQUARE


def test_triangles_need_no_collectives(mesh):
    x = sw.device_put(SQUARE, NamedSharding(mesh, P("data", "model")))
    for function in (jnp.tril, jnp.triu, lambda x: jnp.fill_diagonal(x, 2.0, inplace=False)):
        assert sw.explain(sw.jit(function))(x).stages.local.collectives() == []
