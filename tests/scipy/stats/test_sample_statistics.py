"""mode and rankdata of empty arrays."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.scipy import stats


def test_mode_and_ranks_of_empty_arrays():
    result = stats.mode(jnp.zeros((0, 3)))
    assert result.mode.shape == (3,) and np.isnan(result.mode).all()
    assert stats.mode(jnp.zeros((0, 3)), keepdims=True).mode.shape == (1, 3)
    assert stats.rankdata(jnp.zeros((0,))).shape == (0,)
