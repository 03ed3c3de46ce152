"""Boxes into which large arrays are divided."""

from shardwise.runtime.box import block_shape


def test_sizes_without_divisors_are_not_cut_into_tiny_blocks():
    assert block_shape((1_000_003,), 4, 1 << 19) == (1_000_003,)
    assert block_shape((1_000_003, 512), 4, 1 << 28) == (1_000_003, 64)
    assert block_shape((1024, 1024), 4, 1 << 19) == (128, 1024)
    assert block_shape((7, 4096), 4, 1 << 14) == (1, 4096)
