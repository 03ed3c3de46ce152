"""Padding of windows: the number of windows, by a loop over their positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.lax.padding import integers, padding_pairs

SMALL = st.integers(1, 6)


@given(st.integers(1, 20), SMALL, SMALL, SMALL)
def test_same_padding_gives_one_window_for_each_stride(size, window, stride, dilation):
    extent = dilation * (window - 1) + 1
    for name in ("SAME", "same_lower"):
        ((low, high),) = padding_pairs("f", name, [size], [window], [stride], [dilation])
        starts = [start for start in range(0, low + size + high, stride) if start + extent <= low + size + high]
        assert len(starts) == len(range(0, size, stride))
        assert (high - low in (0, 1)) if name == "SAME" else (low - high in (0, 1))


def test_pairs_and_valid():
    assert padding_pairs("f", "VALID", [5, 6], [2, 2], [1, 1], [1, 1]) == [(0, 0), (0, 0)]
    assert padding_pairs("f", [(1, 2), (0, -1)], [5, 6], [2, 2], [1, 1], [1, 1]) == [(1, 2), (0, -1)]


def test_errors():
    with pytest.raises(ValueError, match="f: padding must have 2 pairs, one for each dim, not"):
        padding_pairs("f", [(1, 2)], [5, 6], [2, 2], [1, 1], [1, 1])
    with pytest.raises(ValueError, match="f: padding must be 'SAME', 'SAME_LOWER', 'VALID' or a pair"):
        padding_pairs("f", "FULL", [5], [2], [1], [1])
    with pytest.raises(ValueError, match=r"f: strides must have 2 numbers, one for each dim, not \(1,\)"):
        integers("f", "strides", [1], 2)
