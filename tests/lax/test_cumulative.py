"""Cumulative reductions: arguments, errors and results."""

import numpy as np
import pytest

from shardwise import lax

CUMULATIVE = {
    lax.cumsum: np.cumsum,
    lax.cumprod: np.cumprod,
    lax.cummax: np.maximum.accumulate,
    lax.cummin: np.minimum.accumulate,
    lax.cumlogsumexp: np.logaddexp.accumulate,
}


@pytest.mark.table(default=2)
@pytest.mark.parametrize("function", CUMULATIVE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_reductions_match_numpy(function, axis):
    x = np.random.default_rng(0).uniform(0.5, 1.5, (5, 100)).astype(np.float32)
    oracle = CUMULATIVE[function]
    np.testing.assert_allclose(function(x, axis), oracle(x, axis), rtol=1e-5)
    np.testing.assert_allclose(
        function(x, axis, reverse=True), np.flip(oracle(np.flip(x, axis), axis), axis), rtol=1e-5
    )


def test_cumulative_reduction_errors():
    with pytest.raises(ValueError, match=r"cumsum: axis -1 does not exist in f32\[3\]; axes count from 0"):
        lax.cumsum(np.ones(3, np.float32), -1)
    with pytest.raises(ValueError, match=r"cummax: axis 1 does not exist in f32\[3\]"):
        lax.cummax(np.ones(3, np.float32), 1)
    with pytest.raises(TypeError, match=r"cummin: booleans are not supported: bool\[3\]; convert them to integers"):
        lax.cummin(np.ones(3, np.bool_))
