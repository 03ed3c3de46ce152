"""zigzag and unzigzag: the order in which causal attention gives every device the same work."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import StrategyError
from shardwise.parallel import unzigzag, zigzag


def chunk_order(shards):
    """Return the chunks in zigzag order: those of device 0, of device 1, …"""
    return [chunk for device in range(shards) for chunk in (device, 2 * shards - 1 - device)]


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2))
def test_shards_hold_a_chunk_from_each_end(shards, size, dim):
    shape = [2, 3, 2]
    shape[dim] = 2 * shards * size
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.int32)
    chunks = np.split(x, 2 * shards, dim)
    expected = np.concatenate([chunks[number] for number in chunk_order(shards)], dim)
    np.testing.assert_array_equal(zigzag(x, shards, dim=dim), expected)
    np.testing.assert_array_equal(unzigzag(expected, shards, dim=dim - 3), x)


@pytest.mark.parametrize("function", [zigzag, unzigzag])
def test_errors_name_what_does_not_fit(function):
    with pytest.raises(StrategyError, match=r"dim 1 .* has size 12, which is not divisible by 8, twice the number"):
        function(np.zeros((2, 12)), 4)
    with pytest.raises(StrategyError, match=r"dim 1 does not exist in an array of shape \(8,\)"):
        function(np.zeros(8), 4)
    with pytest.raises(StrategyError, match="twice the number of shards"):
        function(np.zeros((2, 8)), 0)
