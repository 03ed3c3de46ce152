"""Compare RegularGridInterpolator with scipy."""

import numpy as np
import pytest
import scipy.interpolate
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.scipy.interpolate import RegularGridInterpolator


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    method=st.sampled_from(["linear", "nearest"]),
    fill=st.sampled_from([np.nan, 3.0, None]),
    further=st.sampled_from([(), (2,)]),
)
def test_grid_interpolation_like_scipy(sizes, method, fill, further):
    random = np.random.default_rng(sum(sizes))
    points = [np.cumsum(random.uniform(0.2, 1, size)).astype(np.float32) for size in sizes]
    values = random.normal(size=(*sizes, *further)).astype(np.float32)
    at = random.uniform(-0.5, 4, (7, len(sizes))).astype(np.float32)
    ours = RegularGridInterpolator(points, values, method, fill_value=fill)
    theirs = scipy.interpolate.RegularGridInterpolator(points, values, method, bounds_error=False, fill_value=fill)
    np.testing.assert_allclose(ours(at), theirs(at), atol=2e-4)


@pytest.mark.slow
def test_grid_interpolator_is_a_pytree_and_checks():
    grid = RegularGridInterpolator([np.arange(4.0), np.arange(3.0)], np.arange(12.0).reshape(4, 3))
    result = sw.jit(lambda grid, x: grid(x))(grid, np.array([[1.5, 0.5]], np.float32))
    np.testing.assert_allclose(result, [5.0])
    np.testing.assert_allclose(grid((np.array([1.5]), np.array([0.5]))), [5.0])
    assert sw.grad(grid)(np.array([1.5, 0.5], np.float32)).tolist() == [3, 1]
    with pytest.raises(ValueError, match="do not fit to values"):
        RegularGridInterpolator([np.arange(4.0)], np.ones(3))
    with pytest.raises(ValueError, match="method must be"):
        RegularGridInterpolator([np.arange(4.0)], np.ones(4), "cubic")
    with pytest.raises(ValueError, match="positions need a last axis of 2"):
        grid(np.ones((2, 3)))
    with pytest.raises(NotImplementedError, match="bounds_error"):
        RegularGridInterpolator([np.arange(4.0)], np.ones(4), bounds_error=True)
