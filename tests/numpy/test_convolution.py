"""convolve and correlate against numpy."""

import numpy as np
import pytest

import shardwise.numpy as jnp


@pytest.mark.table(default=2)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("sizes", [(7, 3), (3, 7), (6, 4), (4, 6)], ids=str)
def test_convolve_and_correlate_match_numpy(sizes, mode):
    rng = np.random.default_rng(0)
    a, v = (rng.normal(size=size).astype(np.float32) for size in sizes)
    np.testing.assert_allclose(jnp.convolve(a, v, mode), np.convolve(a, v, mode), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jnp.correlate(a, v, mode), np.correlate(a, v, mode), rtol=1e-5, atol=1e-6)
