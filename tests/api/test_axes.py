"""Axes of mapped functions: their leaves, specs and errors."""

import numpy as np
import pytest

from shardwise import tree
from shardwise.api.axes import argument_axes, axes_to_specs, check_axes, common_size, mapped_dim, output_axes
from shardwise.compiler.ir.types import ArrayType
from shardwise.sharding import PartitionSpec as P

MATRIX = ArrayType((2, 3), np.float32)


def test_a_prefix_is_broadcast_to_the_leaves_and_keywords_are_mapped_over_axis_0():
    assert argument_axes("f", (1, None), ({"a": 0, "b": 0}, 0), {"k": 0}) == [1, 1, None, 0]
    assert output_axes("f", {"a": 2, "b": None}, tree.structure({"a": 0, "b": (0, 0)})) == [2, None, None]
    with pytest.raises(ValueError, match="f: in_axes"):
        argument_axes("f", (0, 0, 0), (1, 2), {})


def test_axes_become_specs():
    assert axes_to_specs((0, None, 2), "x") == (P("x"), P(), P(None, None, "x"))


def test_negative_axes_count_from_the_last_dim():
    assert mapped_dim("f", -1, MATRIX, "`x`") == 1
    with pytest.raises(ValueError, match=r"f: in_axes maps axis 2 of `x`, which is f32\[2,3\] and has rank 2"):
        mapped_dim("f", 2, MATRIX, "`x`")


def test_mapped_axes_have_one_size():
    assert common_size("f", None, {"`x`": 3, "`y`": 3}) == 3
    with pytest.raises(ValueError, match="the same size:\n  `x` has 3\n  axis_size is 4"):
        common_size("f", 4, {"`x`": 3})
    with pytest.raises(ValueError, match="pass axis_size"):
        common_size("f", None, {})


@pytest.mark.parametrize("axes", ["0", 0.0, {"a": 0}, (0, True)])
def test_axes_are_integers_or_none(axes):
    with pytest.raises(TypeError, match="f: in_axes must be an integer, None, or a tuple"):
        check_axes("f", axes)
