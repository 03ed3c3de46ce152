"""top_k: the largest and smallest elements along an axis, like a sort in numpy."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

RNG = np.random.default_rng(0)
ARRAYS = {
    "f32": RNG.normal(size=(4, 7)).astype(np.float32),
    "i8": RNG.integers(-128, 128, (4, 7)).astype(np.int8),
    "u8": RNG.integers(0, 256, (4, 7)).astype(np.uint8),
    "bool": RNG.integers(0, 2, (4, 7)).astype(np.bool_),
    "ties": RNG.integers(0, 3, (4, 7)).astype(np.float32),
    "edges": np.array([[np.inf, np.nan, -0.0, 0.0, -np.inf, np.nan, 1.0]], np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("axis", [0, -1])
def test_smallest_are_the_first_of_a_sort(name, axis):
    x = ARRAYS[name]
    for k in (0, 1, x.shape[axis]):
        values, indices = jnp.top_k(x, k, axis=axis, mode="smallest")
        expected = np.take(np.argsort(x, axis, kind="stable"), range(k), axis)
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))


@pytest.mark.parametrize("name", ARRAYS)
def test_largest_are_the_last_of_a_sort(name):
    x = ARRAYS[name]
    values, indices = jnp.top_k(x, 3)
    np.testing.assert_array_equal(values, np.flip(np.sort(x, -1), -1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(indices), -1), values)


def test_derivatives_select():
    gradient = sw.grad(lambda x: jnp.top_k(x, 2, mode="smallest")[0].sum())(jnp.array([3.0, 1.0, 2.0]))
    np.testing.assert_array_equal(gradient, [0, 1, 1])


def test_errors():
    x = jnp.arange(3)
    for call, message in (
        (lambda: jnp.top_k(x, 4), r"k must be 0 to 3, the size of axis -1 of i32\[3\], not 4"),
        (lambda: jnp.top_k(x, -1, mode="smallest"), "not -1"),
        (lambda: jnp.top_k(x, 1, mode="biggest"), "'largest' or 'smallest', not 'biggest'"),
        (lambda: jnp.top_k(x + 0j, 1), "complex numbers have no order"),
        (lambda: jnp.top_k(x, 1, axis=1), "axis 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
