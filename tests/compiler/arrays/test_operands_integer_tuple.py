"""Shapes, axes and counts may be sequences or arrays of integers, as in numpy."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.arrays.operands import integer_tuple
from shardwise.errors import TracerIntegerConversionError

SHAPES = [[2, 3], (2, 3), np.array([2, 3]), np.array([2, 3], np.uint8)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_shapes_may_be_arrays(shape):
    expected = np.arange(6).reshape(2, 3)
    for created in (jnp.zeros(shape), jnp.ones(shape), jnp.full(shape, 2), jnp.empty(shape)):
        assert created.shape == (2, 3)
    np.testing.assert_array_equal(jnp.reshape(np.arange(6), shape), expected)
    np.testing.assert_array_equal(jnp.broadcast_to(5, shape), np.full((2, 3), 5))
    np.testing.assert_array_equal(jnp.tile(np.arange(2), shape), np.tile(np.arange(2), (2, 3)))


def test_integers_and_arrays():
    assert integer_tuple(3) == integer_tuple(np.int64(3)) == integer_tuple(jnp.int32(3)) == (3,)
    assert integer_tuple(jnp.array([2, 3])) == (2, 3) and integer_tuple([]) == ()
    assert jnp.zeros(jnp.array([], int)).shape == ()
    with pytest.raises(TypeError):
        integer_tuple([1.5])
    with pytest.raises(TracerIntegerConversionError):
        sw.jit(jnp.zeros)(jnp.array([2, 3]))
