"""Products of sorted rows with the matrix of their group equal lax.ragged_dot, in value and gradient."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.parallel.grouped_dot import block_size, grouped_dot

SIZES = {
    "all rows": [5, 0, 9, 7],
    "some rows": [0, 3, 0, 6],
    "one group": [0, 0, 0, 21],
    "none": [0, 0, 0, 0],
}


@pytest.mark.table(default=2)
@pytest.mark.parametrize("block", [4, 8, 512])
@pytest.mark.parametrize("case", SIZES)
def test_equals_ragged_dot(case, block):
    rng = np.random.default_rng(0)
    rows, matrices = rng.normal(size=(21, 3)).astype(np.float32), rng.normal(size=(4, 3, 5)).astype(np.float32)
    sizes, weights = np.array(SIZES[case], np.int32), rng.normal(size=(21, 5)).astype(np.float32)

    def in_blocks(rows, matrices, sizes):
        return grouped_dot(rows, matrices, sizes, block)

    def step(product):
        def loss(rows, matrices):
            result = product(rows, matrices, sizes)
            return (result * weights).sum(), result

        return sw.jit(sw.value_and_grad(loss, (0, 1), has_aux=True))(rows, matrices)

    for ours, expected in zip(sw.tree.leaves(step(in_blocks)), sw.tree.leaves(step(lax.ragged_dot)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_low_precision_sums_gradients_of_matrices_in_float32():
    rows = np.ones((4096, 2), sw.numpy.bfloat16)
    matrices = np.ones((1, 2, 2), sw.numpy.bfloat16)
    gradient = sw.grad(lambda m: grouped_dot(rows, m, np.array([4096], np.int32), 512).astype(np.float32).sum())(
        matrices
    )
    np.testing.assert_array_equal(np.asarray(gradient).astype(np.float32), 4096)


def test_blocks_are_as_large_as_groups_within_limits():
    assert [block_size(rows) for rows in (0, 1, 512, 513, 2048, 10**6)] == [512, 512, 512, 1024, 2048, 4096]
