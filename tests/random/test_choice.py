"""permutation, choice and categorical of sharded arrays."""

import numpy as np

import shardwise as sw
from shardwise import random
from shardwise.sharding import NamedSharding, PartitionSpec


def test_permutation_and_choice_of_sharded_arrays(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    key, x = random.PRNGKey(2), np.arange(26, dtype=np.float32).reshape(13, 2)

    def numbers(key, x):
        return [
            random.permutation(key, x),
            random.permutation(key, x, independent=True),
            random.choice(key, x, (5,)),
            random.categorical(key, x, shape=(13,)),
        ]

    run = sw.jit(numbers)
    for expected, samples in zip(run(key, x), run(key, sw.device_put(x, sharding)), strict=True):
        np.testing.assert_array_equal(samples, expected)
