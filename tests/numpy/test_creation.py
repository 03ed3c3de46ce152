"""Created arrays: values and dtypes, against numpy."""

import numpy as np
import pytest

import shardwise.numpy as jnp


def test_creation():
    np.testing.assert_array_equal(jnp.zeros((2, 3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(jnp.ones(3, jnp.int32), [1, 1, 1])
    np.testing.assert_array_equal(jnp.full((2,), 7), [7, 7])
    np.testing.assert_array_equal(jnp.full((2, 2), jnp.arange(2)), [[0, 1], [0, 1]])
    for args in ((5,), (2, 8), (1, 10, 3), (10, 0, -3), (0.5, 3), (3, 0)):
        np.testing.assert_allclose(jnp.arange(*args), np.arange(*args))
    np.testing.assert_array_equal(jnp.eye(3, 4, 1), np.eye(3, 4, 1))
    np.testing.assert_array_equal(jnp.zeros_like(np.ones(2)), [0, 0])
    assert jnp.array([1, 2]).dtype == np.int32
    assert jnp.array([1.5]).dtype == np.float32
    assert jnp.array(np.ones(2)).dtype == np.float32
    assert jnp.array(np.ones(2, np.float16)).dtype == np.float16
    with pytest.raises(ValueError, match="step must not be 0"):
        jnp.arange(1, 2, 0)
