"""Sort and top_k: arguments, errors and results."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax


def test_sort_accepts_one_array_or_several():
    x, y = np.array([[3, 1, 2], [5, 5, 4]], np.int32), np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(lax.sort(x), np.sort(x))
    np.testing.assert_array_equal(lax.sort(x, 0), np.sort(x, 0))
    (only,) = lax.sort([x])
    np.testing.assert_array_equal(only, np.sort(x))
    keys, values = lax.sort_key_val(x, y, 1)
    np.testing.assert_array_equal(keys, np.sort(x))
    np.testing.assert_array_equal(values, [[1, 2, 0], [5, 3, 4]])
    first, second, third = lax.sort((np.array([1, 0, 1, 0]), np.array([4.0, 3.0, 2.0, 1.0]), np.arange(4)), num_keys=2)
    assert (first.tolist(), second.tolist(), third.tolist()) == ([0, 0, 1, 1], [1, 3, 2, 4], [3, 1, 2, 0])


def test_sort_errors():
    with pytest.raises(TypeError, match="sort: needs at least one array"):
        lax.sort(())
    with pytest.raises(ValueError, match="sort: num_keys must be 1 to 1, the number of arrays, not 2"):
        lax.sort(np.ones(3), num_keys=2)
    with pytest.raises(ValueError, match="sort: axis 1 does not exist in an array of rank 1"):
        lax.sort(np.ones(3), 1)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("axis", [0, 1, -2, 2])
def test_top_k_along_any_axis(axis):
    x = np.random.default_rng(0).permutation(60).reshape(3, 4, 5).astype(np.float32)
    values, indices = lax.top_k(x, 2, axis=axis)
    np.testing.assert_array_equal(indices, np.take(np.argsort(-x, axis), range(2), axis))
    np.testing.assert_array_equal(values, np.take_along_axis(x, np.asarray(indices), axis))


def test_approx_max_k_and_approx_min_k_are_exact():
    x = np.random.default_rng(0).permutation(60).reshape(3, 20).astype(np.float32)
    np.testing.assert_array_equal(lax.approx_max_k(x, 4)[1], np.argsort(-x)[:, :4])
    values, indices = lax.approx_min_k(x, 2, reduction_dimension=0)
    np.testing.assert_array_equal(indices, np.argsort(x, 0)[:2])
    np.testing.assert_array_equal(values, np.sort(x, 0)[:2])
    with pytest.raises(NotImplementedError, match="approx_max_k: aggregate_to_topk=False is not supported"):
        lax.approx_max_k(x, 4, aggregate_to_topk=False)
    with pytest.raises(TypeError, match=r"approx_min_k: needs floats, not i32\[3\]"):
        lax.approx_min_k(np.arange(3, dtype=np.int32), 1)


def test_top_k_errors():
    with pytest.raises(ValueError, match=r"top_k: k must be 0 to 3, the size of axis -1 of f32\[2,3\], not 4"):
        lax.top_k(np.ones((2, 3), np.float32), 4)
    with pytest.raises(ValueError, match="top_k: axis -1 does not exist in an array of rank 0"):
        lax.top_k(1.0, 1)


def test_vmap():
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    np.testing.assert_array_equal(sw.vmap(lambda x: lax.top_k(x, 3)[1])(x), lax.top_k(x, 3)[1])
    np.testing.assert_array_equal(sw.vmap(lax.sort, in_axes=1, out_axes=1)(x), np.sort(x, 0))
    np.testing.assert_allclose(sw.vmap(lax.cumsum, in_axes=1, out_axes=1)(x), np.cumsum(x, 0), rtol=1e-5)
    batched_values = sw.vmap(lax.sort_key_val, in_axes=(None, 0))(x[0], x)[1]
    np.testing.assert_array_equal(batched_values, x[:, np.argsort(x[0])])


def test_array_methods():
    x = jnp.array([[3.0, 1.0], [2.0, 4.0]])
    assert x.cumsum().tolist() == [3, 4, 6, 10]
    assert x.cumprod(1).tolist() == [[3, 3], [2, 8]]
    assert x.sort().tolist() == [[1, 3], [2, 4]]
    assert x.sort(None, descending=True).tolist() == [4, 3, 2, 1]
    assert x.argsort(0).tolist() == [[1, 0], [0, 1]]
