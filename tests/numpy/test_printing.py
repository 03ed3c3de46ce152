"""Arrays as text."""

import numpy as np

import shardwise.numpy as jnp


def test_array_repr_and_str():
    x = jnp.array([1.23456, 2.0])
    assert jnp.array_repr(x, precision=3) == "Array([1.235, 2.   ], dtype=float32)"
    assert jnp.array_str(x, precision=3) == "[1.235 2.   ]"
    with jnp.printoptions(precision=1):
        assert str(x) == "[1.2 2. ]"
    assert jnp.array_repr(np.array([1, 2])) == "array([1, 2])"
