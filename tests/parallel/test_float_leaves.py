"""Leaves with derivatives, apart from the others."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.parallel.float_leaves import split_floats


def test_leaves_are_split_by_dtype_and_joined_again():
    tree = {"w": np.float32(1), "ids": np.int32(2), "pair": (jnp.bfloat16(3), np.bool_(True)), "z": np.complex64(1j)}
    floats, others, join = split_floats(tree)
    assert floats == [3, 1, 1j] and others == [2, True]  # keys of dicts are sorted
    assert join(floats, others) == tree
    assert join("abc", "xy") == {"w": "b", "ids": "x", "pair": ("a", "y"), "z": "c"}
