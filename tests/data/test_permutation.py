"""Permutation: a bijection for every size, seed and epoch, without bias."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.data import Permutation
from shardwise.errors import DataError


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_every_index_has_one_image(size, seed, epoch):
    images = Permutation(size, seed, epoch)(np.arange(size))
    np.testing.assert_array_equal(np.sort(images), np.arange(size))


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2**20, 2**62), start=st.integers(0, 2**62))
def test_images_of_a_part_are_distinct_and_do_not_depend_on_the_rest(size, start):
    indices = (start + np.arange(50)) % size
    permute = Permutation(size, seed=3)
    images = permute(indices)
    assert len(set(images.tolist())) == len(indices) and images.min() >= 0 and images.max() < size
    np.testing.assert_array_equal(permute(indices[::7]), images[::7])
    assert permute(int(indices[0])) == images[0]


def test_seeds_and_epochs_give_different_orders():
    orders = {tuple(Permutation(20, seed, epoch)(np.arange(20))) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_permutations_have_no_bias():
    # All 24 orders of four samples. The bound is 5 standard deviations of a binomial distribution; seeds are fixed.
    orders = [tuple(Permutation(4, seed)(np.arange(4))) for seed in range(4800)]
    counts = np.array([orders.count(order) for order in set(orders)])
    assert len(counts) == 24
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)
    # The mean distance of neighbours is that of independent samples, size / 3, not that of a local shuffle.
    images = Permutation(100_000, 0)(np.arange(100_000))
    assert np.abs(np.diff(images)).mean() == pytest.approx(100_000 / 3, rel=0.02)
    assert abs(np.corrcoef(images, np.arange(100_000))[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Permutation(0, 0), "size must be between 1 and"),
        (lambda: Permutation(3, 0.5), "seed must be an integer, not 0.5"),
        (lambda: Permutation(3, True), "seed must be an integer, not True"),
        (lambda: Permutation(3, 0)([3]), "indices must be between 0 and 2"),
        (lambda: Permutation(3, 0)([-1]), "indices must be between 0 and 2"),
    ],
)
def test_errors(call, message):
    with pytest.raises(DataError, match=message):
        call()
