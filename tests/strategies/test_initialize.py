"""Parameters are sharded from the start."""

import numpy as np

import shardwise as sw
from shardwise import strategies
from tests.strategies.test_parameters import init


def test_initialization_is_sharded_from_the_start(mesh):
    def choose(types):
        return strategies.fsdp(types, mesh, min_size=0)

    types = sw.eval_shape(init, sw.random.key(0))
    plan = sw.explain(sw.jit(init, out_shardings=choose(types)))(sw.random.key(0))
    assert plan.wire_bytes == 0
    created = strategies.initialize(init, choose)(sw.random.key(0))
    sw.tree.map(np.testing.assert_array_equal, created, sw.jit(init)(sw.random.key(0)))
