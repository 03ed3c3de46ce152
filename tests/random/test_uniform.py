"""Uniform samples and bits of sharded arrays: each device computes its own."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import random
from shardwise.sharding import NamedSharding, PartitionSpec
from tests.random.test_random_layouts import collectives, local_of


def test_each_device_samples_its_own_shard(mesh):
    """The local program samples two of 13 rows, without collectives and without slices of a larger array."""
    rows = NamedSharding(mesh, PartitionSpec(("data", "model")))
    local = local_of(sw.jit(lambda key: random.uniform(key, (13, 3)), out_shardings=rows), random.PRNGKey(0))
    shapes = [
        equation.outputs[0].type.shape for equation in local.program.equations if equation.op.name == "random_bits"
    ]
    assert shapes == [(2, 3)]
    assert collectives(local) == []


@pytest.mark.table(default=1)
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_bits_do_not_depend_on_the_number_of_devices(count):
    mesh = sw.make_mesh((count,), ("x",), devices=sw.devices()[:count])
    sample = sw.jit(lambda key: random.bits(key, (11, 2)), out_shardings=NamedSharding(mesh, PartitionSpec("x")))
    np.testing.assert_array_equal(sample(random.PRNGKey(1)), random.bits(random.PRNGKey(1), (11, 2)))
