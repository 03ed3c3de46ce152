"""Masks of lists in which None stands for absent entries."""

from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask


def test_insert_none_inverts_drop_none():
    values = [None, 0, False, None, "x"]
    mask = present_mask(values)
    assert mask == (False, True, True, False, True)
    assert drop_none(values) == [0, False, "x"]
    assert insert_none(drop_none(values), mask) == values
