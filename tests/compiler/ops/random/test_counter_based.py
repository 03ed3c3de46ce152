"""Row-major strides of the counters of a shard."""

import pytest

from shardwise.compiler.ops.random.counter_based import row_major_strides


def test_row_major_strides():
    assert row_major_strides((2, 3, 4)) == (12, 4, 1)
    assert row_major_strides((2**20, 2**20)) == (2**20, 1)
    with pytest.raises(NotImplementedError, match=r"has more elements than the 2\*\*64 counters of one key"):
        row_major_strides((2**33, 2**32))
