"""funm against scipy."""

import numpy as np
import pytest
import scipy.linalg

import shardwise.numpy as jnp
import shardwise.scipy as own
from tests.scipy.linalg.test_linalg import dominant


@pytest.mark.table(default=1)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_funm_equals_that_of_scipy(size):
    x = dominant(size, size)
    for ours, theirs in ((jnp.sin, np.sin), (jnp.exp, np.exp)):
        np.testing.assert_allclose(own.linalg.funm(x, ours), scipy.linalg.funm(x, theirs), rtol=1e-3, atol=1e-4)
    result, error = own.linalg.funm(x, jnp.sin, disp=False)
    assert np.abs(np.asarray(result) - scipy.linalg.funm(x.astype(float), np.sin)).max() < 1e-3
    assert 0 < float(error) < 1e-3


def test_funm_error_estimate_is_one_for_equal_eigenvalues():
    """Parlett's recurrence divides by the difference of two eigenvalues."""
    _, error = own.linalg.funm(np.array([[1, 1], [0, 1]], np.float32), jnp.exp, disp=False)
    assert float(error) == 1
