"""Rejection samplers on several devices."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import random
from shardwise.sharding import NamedSharding, PartitionSpec
from tests.random.test_random_layouts import collectives, local_of


@pytest.mark.slow
def test_rejection_samplers_loop_per_device(mesh):
    """Gamma samples need no collective; Poisson and binomial samples need one all-reduce of a scalar each."""
    sharding = NamedSharding(mesh, PartitionSpec(("data", "model")))
    key, size = random.PRNGKey(5), 1003

    def sample(key):
        return [
            random.gamma(key, 0.7, (size,)),
            random.poisson(key, 30.0, (size,)),
            random.binomial(key, 99, 0.4, (size,)),
        ]

    sharded = sw.jit(sample, out_shardings=sharding)
    for expected, samples in zip(sw.jit(sample)(key), sharded(key), strict=True):
        np.testing.assert_array_equal(samples, expected)
    local = local_of(sharded, key)
    assert collectives(local) == ["all_reduce"] * 2
    assert {equation.outputs[0].type.size for equation in local.collectives()} == {1}
    assert all(equation in local.program.equations for equation in local.collectives())  # none in a loop
