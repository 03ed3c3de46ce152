"""reduce_window lowers computations that are equivalent to a known one as that one."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax


def test_reduce_window_recognizes_equivalent_computations():
    x = np.array([3, 1, 2, 5], np.float32)
    for function in (lambda a, b: a + b, lambda a, b: jnp.add(b, a), lax.add):
        np.testing.assert_array_equal(lax.reduce_window(x, 0.0, function, (2,)), [4, 3, 7])
    np.testing.assert_array_equal(sw.jit(lambda x: lax.reduce_window(x, x[0], jnp.maximum, (2,)))(x), [3, 3, 5])
