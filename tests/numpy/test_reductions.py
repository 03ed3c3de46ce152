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


@pytest.mark.parametrize("axis", [None, 0, (0, 2)], ids=str)
def test_minmax(axis):
    (x,) = arrays((2, 3, 4))
    lowest, highest = jnp.minmax(x, axis, keepdims=True)
    np.testing.assert_array_equal(lowest, x.min(axis, keepdims=True))
    np.testing.assert_array_equal(highest, x.max(axis, keepdims=True))


def test_minmax_with_initial_values():
    x = np.array([3.0, 5.0, 9.0], np.float32)
    assert [*map(float, jnp.minmax(x, initial=4.0))] == [3, 9]
    assert [*map(float, jnp.minmax(x, initial=(1.0, 20.0)))] == [1, 20]
    assert [*map(float, jnp.minmax(x, initial=(7.0, 4.0), where=x < 4))] == [3, 4]
    with pytest.raises(ValueError, match="`where` needs `initial`"):
        jnp.minmax(x, where=x < 4)
