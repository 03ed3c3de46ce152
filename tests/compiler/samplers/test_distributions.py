"""Samples of a shard equal those of the whole array."""

import numpy as np

from shardwise.compiler.samplers.distributions import RandomGamma


def test_the_sample_of_a_shard_does_not_depend_on_the_other_elements():
    keys, shapes = np.arange(8, dtype=np.uint32).reshape(4, 2), np.float32([0.3, 1, 7, 0.01])
    samples = RandomGamma(False).reference(keys, shapes)
    shard = slice(1, 3)
    np.testing.assert_array_equal(RandomGamma(False).reference(keys[shard], shapes[shard]), samples[shard])
    assert len(set(samples.tolist())) == len(samples)
