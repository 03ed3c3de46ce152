"""Dynamic slices, gather and scatter of lax: values, dtypes and gradients against JAX, and errors."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

X = np.arange(12, dtype=np.float32).reshape(4, 3)
INDICES = np.array([[0], [9], [-1], [0]], np.int32)


def rows(lax):
    return lax.GatherDimensionNumbers((1,), (0,), (0,))


def row_updates(lax):
    return lax.ScatterDimensionNumbers((1,), (0,), (0,))


CALLS = {
    "dynamic_slice": lambda lax, x: lax.dynamic_slice(x, (-1, 7), (2, 2)),
    "dynamic_slice at an array": lambda lax, x: lax.dynamic_slice(x, np.array([1, 0]), (2, 2)),
    "dynamic_slice of all": lambda lax, x: lax.dynamic_slice(x, (3, 1), (4, 3)),
    "dynamic_slice of nothing": lambda lax, x: lax.dynamic_slice(x, (1, 1), (0, 3)),
    "dynamic_slice at small integers": lambda lax, x: lax.dynamic_slice(x, np.array([2, 0], np.uint8), (2, 2)),
    "dynamic_slice_in_dim": lambda lax, x: lax.dynamic_slice_in_dim(x, 2, 3, 0),
    "dynamic_slice_in_dim last": lambda lax, x: lax.dynamic_slice_in_dim(x, -1, 2, axis=-1),
    "dynamic_index_in_dim": lambda lax, x: lax.dynamic_index_in_dim(x, -1, 1),
    "dynamic_index_in_dim without": lambda lax, x: lax.dynamic_index_in_dim(x, 2, 0, keepdims=False),
    "dynamic_update_slice": lambda lax, x: lax.dynamic_update_slice(x, -x[:2, :2], (1, 7)),
    "dynamic_update_slice_in_dim": lambda lax, x: lax.dynamic_update_slice_in_dim(x, -x[:, :1], 9, 1),
    "dynamic_update_index_in_dim": lambda lax, x: lax.dynamic_update_index_in_dim(x, -x[0], 1, 0),
    "dynamic_update_index_in_dim with": lambda lax, x: lax.dynamic_update_index_in_dim(x, -x[:1], -2, 0),
    "index_take": lambda lax, x: lax.index_take(x, (np.array([0, 9, -1]),), (0,)),
    "index_take columns": lambda lax, x: lax.index_take(x, (np.array([0, 9, -1]),), (1,)),
    "index_take both": lambda lax, x: lax.index_take(x, (np.array([0, 2]), np.array([1, -1])), (0, 1)),
    **{
        f"gather {mode}": lambda lax, x, mode=mode: lax.gather(x, INDICES, rows(lax), (1, 3), mode=mode)
        for mode in (None, "fill", "clip", "promise_in_bounds")
    },
    "gather with a value": lambda lax, x: lax.gather(
        x, INDICES, rows(lax), (1, 3), mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=7
    ),
    "gather windows": lambda lax, x: lax.gather(
        x, np.array([[0, 0], [3, 2], [1, -5]], np.int32), lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 2)
    ),
    "gather a batch": lambda lax, x: lax.gather(
        x, np.array([[[0], [2]]] * 4), lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,)), (1, 1)
    ),
    **{
        f"{name} {mode}": lambda lax, x, name=name, mode=mode: getattr(lax, name)(
            x, INDICES, x * 0.5 + 1, row_updates(lax), mode=mode
        )
        for name in ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max")
        for mode in (None, "drop", "clip")
    },
}


# JAX has no gradient of scatter_mul with indices that may repeat. With promise_in_bounds and indices that are out of
# bounds, JAX's gradient is zero, and ours is that of the clamped index. JAX's gradient of scatter_min with mode "clip"
# is infinite.
NO_GRADIENT = {
    *("gather None", "gather promise_in_bounds", "gather windows"),
    *("scatter_mul None", "scatter_mul drop", "scatter_mul clip", "scatter_min clip"),
}


@pytest.mark.table(default=7)
@pytest.mark.jax
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_match_jax(name):
    jax = pytest.importorskip("jax")
    call = CALLS[name]
    expected = jax.jit(lambda x: call(jax.lax, x))(X)
    for actual in (call(lax, sw.numpy.asarray(X)), sw.jit(lambda x: call(lax, x))(X)):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)
    if name not in NO_GRADIENT:
        weights = np.cos(np.arange(expected.size)).reshape(expected.shape)
        expected_gradient = jax.grad(lambda x: (call(jax.lax, x) * weights).sum())(X)
        gradient = sw.grad(lambda x: (call(lax, x) * weights.astype(np.float32)).sum())(X)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16", "int8"])
def test_default_fill_value_matches_jax(dtype):
    jax = pytest.importorskip("jax")
    x = X.astype(dtype)
    expected = jax.lax.gather(x, INDICES, rows(jax.lax), (1, 3), mode="fill")
    actual = lax.gather(x, INDICES, rows(lax), (1, 3), mode="fill")
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def test_vmap_over_start_indices():
    """Each element of the batch has its own slice, and its own update."""
    starts = np.array([0, 3, -1, 77, -77])
    slices = sw.vmap(lambda i: lax.dynamic_slice_in_dim(X, i, 2, 0))(starts)
    firsts = np.clip(np.where(starts < 0, starts + 4, starts), 0, 2)
    np.testing.assert_array_equal(slices, np.stack([X[i : i + 2] for i in firsts]))
    updates = sw.vmap(lambda i, u: lax.dynamic_update_slice_in_dim(X, u, i, 0))(starts, -slices)
    for row, first in zip(np.asarray(updates), firsts, strict=True):
        expected = X.copy()
        expected[first : first + 2] *= -1
        np.testing.assert_array_equal(row, expected)


def test_mode_from_any():
    modes = lax.GatherScatterMode
    assert modes.from_any(None) is modes.from_any("drop") is modes.from_any("fill") is modes.FILL_OR_DROP
    assert modes.from_any("clip") is modes.from_any(modes.CLIP) is modes.CLIP


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: lax.dynamic_slice(X, (1,), (2, 2)),
            ValueError,
            "dynamic_slice: start_indices must have one index for each of 2 dims, not 1",
        ),
        (lambda: lax.dynamic_slice(X, (1.5, 0), (2, 2)), TypeError, "index: needs integers, not f32[]~"),
        (
            lambda: lax.dynamic_slice(X, (1, 0), (5, 2)),
            TypeError,
            "dynamic_slice: slice_sizes (5, 2) must be from 0 to the size of each dim: "
            "dim 0 of f32[4,3] has 4 elements, not 5",
        ),
        (
            lambda: lax.dynamic_update_slice(X, np.ones((2, 2), np.int32), (1, 0)),
            TypeError,
            "dynamic_update_slice: the update i32[2,2] must have the dtype and rank of f32[4,3], and no larger dims",
        ),
        (
            lambda: lax.dynamic_index_in_dim(X, 0, 2),
            ValueError,
            "dynamic_slice_in_dim: axis 2 does not exist in an array of rank 2",
        ),
        (
            lambda: lax.scatter(X, INDICES, np.ones((4, 3), np.int32), row_updates(lax)),
            TypeError,
            "scatter: updates must have the dtype of f32[4,3], not i32[4,3]",
        ),
        (
            lambda: lax.gather(X, INDICES, rows(lax), (1, 3), mode="wrap"),
            ValueError,
            "gather: unknown mode 'wrap'; supported: clip, fill, drop, promise_in_bounds",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_error_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).splitlines()[0] == message
