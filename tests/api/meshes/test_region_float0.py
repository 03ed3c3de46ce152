"""float0 arrays in manual regions: inside, they have the shapes of shards. tests/api/transformations/test_float0.py
compares results with JAX."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.dtypes import float0
from shardwise.sharding import PartitionSpec as P


@pytest.mark.parametrize("transform", [lambda f: f, sw.jit])
def test_shapes_of_shards(mesh, transform):
    shapes = []

    def f(zero, x):
        shapes.append(zero.shape)
        return {"zero": zero, "x": x}

    region = sw.shard_map(f, mesh=mesh, in_specs=(P(None, "data"), P("model")), out_specs=P(("model", "data")))
    result = transform(region)(np.zeros((3, 8), float0), np.ones(8))
    assert shapes[-1] == (3, 8 // mesh.shape["data"])
    assert result["zero"].shape == (3 * mesh.size, 8 // mesh.shape["data"]) and result["zero"].dtype == float0
    assert result["x"].shape == (8 * mesh.shape["data"],)


def test_a_dim_that_the_axis_does_not_divide_raises(mesh):
    region = sw.shard_map(lambda zero: zero, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    with pytest.raises(
        ValueError, match=r"dim 0 of leaf 0 of the arguments, .* has size 6, which is not divisible by 4"
    ):
        region(np.zeros(6, float0))
