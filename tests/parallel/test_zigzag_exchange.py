"""The exchange of shards in contiguous order for shards in zigzag order, compared with `zigzag` of the sequence."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.parallel import zigzag
from shardwise.parallel.ring import Ring
from shardwise.parallel.zigzag_exchange import exchange_from_zigzag, exchange_to_zigzag


@pytest.mark.parametrize("size", [1, 3, 8])
def test_shards_are_those_of_the_permuted_sequence(size):
    mesh = sw.make_mesh((size,), ("context",), devices=sw.devices()[:size])
    ring, spec = Ring(("context",), size), sw.P(None, "context")
    x = np.arange(2 * 4 * size * 3, dtype=np.float32).reshape(2, 4 * size, 3)

    def on_shards(function):
        return sw.jit(sw.shard_map(lambda x: function(x, ring), mesh=mesh, in_specs=spec, out_specs=spec))

    permuted = on_shards(exchange_to_zigzag)(x)
    np.testing.assert_array_equal(permuted, zigzag(x, size))
    np.testing.assert_array_equal(on_shards(exchange_from_zigzag)(permuted), x)
