"""Padding of dims that axes do not divide."""

from shardwise.layout_search.families import may_be_divided


def test_padding_is_small():
    assert may_be_divided(16, 8) and may_be_divided(15, 8) and may_be_divided(97, 8)
    assert not may_be_divided(13, 8) and not may_be_divided(3, 8) and not may_be_divided(0, 8)
