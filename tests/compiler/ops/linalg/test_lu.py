"""LU of singular matrices."""

import shardwise.numpy as jnp
from shardwise.compiler.ops.linalg.lu import Lu


def test_lu_of_a_singular_matrix():
    both, pivots = Lu()(jnp.zeros((2, 2)))
    assert both.tolist() == [[0, 0], [0, 0]] and pivots.tolist() == [0, 1]
