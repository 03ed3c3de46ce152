"""The parameter `out_sharding`."""

import numpy as np

from shardwise import random
from shardwise.sharding import NamedSharding, PartitionSpec


def test_out_sharding_is_the_sharding_of_the_result(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    samples = random.normal(random.key(0), (5, 6), out_sharding=sharding)
    assert samples.sharding == sharding
    np.testing.assert_array_equal(samples, random.normal(random.key(0), (5, 6)))
