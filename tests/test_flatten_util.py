"""ravel_pytree: values, dtypes and structures like JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.flatten_util import ravel_pytree

jax = pytest.importorskip("jax")
pytest.importorskip("jax.flatten_util")
pytestmark = pytest.mark.jax
TREES = [
    {"a": np.ones((2, 3), np.float32), "b": [np.float32(2), np.arange(4, dtype=np.float32)]},
    (np.arange(3), np.ones(2, np.float32)),
    (np.array([True]), np.arange(2, dtype=np.int32)),
    (np.ones(1, np.float32), np.ones((1, 2), np.complex64)),
    [],
    3.0,
]


@pytest.mark.parametrize("pytree", TREES, ids=str)
def test_same_as_jax(pytree):
    vector, unravel = ravel_pytree(pytree)
    expected, their_unravel = jax.flatten_util.ravel_pytree(pytree)
    assert vector.dtype == expected.dtype
    np.testing.assert_array_equal(vector, expected)
    mine, theirs = unravel(vector), their_unravel(expected)
    assert sw.tree.structure(mine) == sw.tree.structure(pytree)
    for one, other in zip(sw.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_dtypes_and_errors():
    vector, unravel = ravel_pytree(jnp.arange(3.0))
    assert unravel(vector < 2).dtype == bool
    with pytest.raises(TypeError, match="needs a vector of 3 elements"):
        unravel(jnp.ones(4))
    vector, unravel = ravel_pytree((jnp.arange(3.0), jnp.arange(2)))
    with pytest.raises(TypeError, match="needs a vector of float32, not bool"):
        unravel(vector < 2)


def test_under_transformations():
    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    vector, unravel = ravel_pytree(params)

    def loss(vector):
        return (unravel(vector)["w"] ** 2).sum()

    expected, _ = ravel_pytree({"w": 2 * params["w"], "b": params["b"]})
    np.testing.assert_array_equal(sw.jit(sw.grad(loss))(vector), expected)
    assert ravel_pytree(sw.tree.map(jnp.sin, params))[1] == unravel  # jitted functions are not compiled again
