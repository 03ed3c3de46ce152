"""A function of pytrees as a function of their leaves."""

import pytest

from shardwise import tree
from shardwise.api.flatten import FlatFunction


def test_leaves_are_passed_as_arguments_and_returned_as_a_list():
    def swap(pair, *, scale):
        return {"b": pair[1] * scale, "a": pair[0]}

    leaves, structure = tree.flatten((((2, 3),), {"scale": 10}))
    flat = FlatFunction(swap, structure)
    assert flat(*leaves) == [2, 30]
    assert flat.out_tree.unflatten(["x", "y"]) == {"a": "x", "b": "y"}


def test_results_must_be_arrays_or_numbers():
    def named(x):
        return x, "name"

    _, structure = tree.flatten(((1,), {}))
    with pytest.raises(TypeError, match="returned 'name' of type str as result 1"):
        FlatFunction(named, structure)(1)
