"""Arrays that are passed by keyword."""

import numpy as np

import shardwise.numpy as jnp


def test_arrays_as_keyword_arguments():
    x, y = np.array([4, 6], np.int32), np.array([6, 9], np.int32)
    for name in ("gcd", "lcm", "fmax", "fmin"):
        np.testing.assert_array_equal(getattr(jnp, name)(x1=x, x2=y), getattr(np, name)(x, y))
    np.testing.assert_array_equal(jnp.kron(a=x, b=y), np.kron(x, y))
    np.testing.assert_array_equal(jnp.polyadd(a1=x, a2=y), x + y)
    np.testing.assert_array_equal(jnp.trunc(x=np.float32([1.5])), [1])
