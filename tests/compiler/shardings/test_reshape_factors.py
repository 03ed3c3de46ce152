"""The factors of a reshape rebuild both shapes, and number the elements alike."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.compiler.shardings.reshape_factors import reshape_factors


def test_dims_that_nest_share_all_factors():
    found = reshape_factors((8, 4), (2, 16))
    assert found == (((0, 1), (2,)), ((0,), (1, 2)), (2, 4, 4), frozenset())


def test_dims_that_do_not_nest_need_replication():
    found = reshape_factors((6, 4), (4, 6))
    assert found == (((0, 1), (4,)), ((0, 2), (3,)), (2, 3, 2, 6, 4), frozenset({1, 2, 3, 4}))


@st.composite
def pairs(draw):
    """Two shapes of one number of elements, with dims of size 1."""

    def shape():
        primes = draw(st.permutations(factors))
        cuts = sorted(draw(st.lists(st.integers(0, len(primes)), max_size=4)))
        return tuple(math.prod(primes[i:j]) for i, j in zip([0, *cuts], [*cuts, len(primes)], strict=True))

    factors = draw(st.lists(st.sampled_from([2, 2, 3, 5]), max_size=5))
    return shape(), shape()


@given(pairs())
def test_shared_factors_have_equal_strides(shapes):
    """An index along a factor that both sides share moves by the same number of elements in both."""
    before, after = shapes
    found = reshape_factors(before, after)
    strides = []
    for shape, dims in ((before, found.before), (after, found.after)):
        assert tuple(math.prod(found.sizes[factor] for factor in dim) for dim in dims) == shape
        order = [factor for dim in dims for factor in dim]
        sizes = [found.sizes[factor] for factor in order]
        strides.append({f: math.prod(sizes[place + 1 :]) for place, f in enumerate(order)})
    shared = strides[0].keys() & strides[1].keys()
    assert shared == set(range(len(found.sizes))) - found.need_replication
    assert all(strides[0][factor] == strides[1][factor] for factor in shared)


@pytest.mark.parametrize(("before", "after"), [((0, 3), (3, 0)), ((2, 0), (0,))])
def test_dims_of_empty_arrays_have_factors_of_their_own(before, after):
    found = reshape_factors(before, after)
    assert found.sizes == (*before, *after)
    assert found.need_replication == frozenset(range(len(before) + len(after)))
    assert np.prod(found.sizes) == 0
