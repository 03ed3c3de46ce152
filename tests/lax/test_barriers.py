"""optimization_barrier."""

import numpy as np

import shardwise as sw
from shardwise import lax


def test_optimization_barrier_prevents_cse():
    def both(x):
        return lax.optimization_barrier(lax.sin(x)) + lax.sin(x)

    text = sw.jit(both).lower(np.float32(1)).as_text()
    assert "optimization_barrier" in text
    assert text.count("stablehlo.sine") == 2
