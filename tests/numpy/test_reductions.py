"""Reductions: values against numpy, and the dtypes of their accumulators."""

import ml_dtypes
import numpy as np
import pytest

import shardwise.numpy as jnp
from tests.numpy.test_numpy_functions import arrays


@pytest.mark.table(default=9)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (1, -1), ()], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_reductions(name, axis, keepdims):
    (x,) = arrays((2, 3, 4))
    got = getattr(jnp, name)(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(got, getattr(np, name)(x, axis=axis, keepdims=keepdims), rtol=1e-5, atol=1e-6)
    method = getattr(jnp.asarray(x), name)(axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(method, got)


def test_narrow_dtypes_accumulate_in_wider_ones():
    x = np.full(4096, 1.0, ml_dtypes.bfloat16)
    assert float(jnp.sum(x)) == 4096.0
    assert jnp.sum(x).dtype == ml_dtypes.bfloat16
    assert int(jnp.sum(np.full(1000, 100, np.int8))) == 100000
