"""jax.ds: slices with a dynamic start, in reads and updates, compared with JAX."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

HERE = SimpleNamespace(jax=sw, np=jnp)
THERE = SimpleNamespace(jax=jax, np=jax.numpy)
X = np.arange(20).reshape(4, 5)
STARTS = (0, 1, 2, 3, 9, -1, -2)
CALLS = {
    "read": lambda m, x, i: x[m.jax.ds(i, 2)],
    "second dim": lambda m, x, i: x[1, m.jax.ds(i, 3)],
    "both dims": lambda m, x, i: x[m.jax.ds(i, 2), m.jax.ds(i, 3)],
    "ellipsis and new dim": lambda m, x, i: x[..., None, m.jax.ds(i, 3)],
    "with a slice": lambda m, x, i: x[::-1, m.jax.ds(i, 2)],
    "all": lambda m, x, i: x[m.jax.ds(i, 4), m.jax.ds(None)],
    "from zero": lambda m, x, i: x[m.jax.ds(2)],
    "set": lambda m, x, i: x.at[m.jax.ds(i, 2)].set(7),
    "add to a row": lambda m, x, i: x.at[1, m.jax.ds(i, 3)].add(m.np.arange(3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_same_as_jax(name):
    call = CALLS[name]
    for start in STARTS:
        expected = call(THERE, jax.numpy.asarray(X), start)
        np.testing.assert_array_equal(call(HERE, jnp.asarray(X), start), expected)
        np.testing.assert_array_equal(sw.jit(lambda x, i: call(HERE, x, i))(X, start), expected)


def test_stride():
    x, theirs = jnp.arange(10), jax.numpy.arange(10)
    for start in (0, 1, 5, 8):
        np.testing.assert_array_equal(x[sw.ds(start, 3, 2)], theirs[jax.ds(start, 3, 2)])


def test_sharded(mesh):
    x = sw.device_put(X, NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(sw.jit(lambda x, i: x[sw.ds(i, 2)])(x, 1), X[1:3])


def test_under_transformations():
    def total(x, i):
        return (x[sw.ds(i, 2)] ** 2).sum()

    x = jnp.arange(4.0)
    np.testing.assert_array_equal(sw.grad(total)(x, 1), [0, 2, 4, 0])
    np.testing.assert_array_equal(sw.vmap(total, (None, 0))(x, jnp.arange(3)), [1, 5, 13])
    assert sw.tree.leaves(sw.ds(3, 2)) == [3]


def test_errors():
    x = jnp.arange(4)
    with pytest.raises(IndexError, match=r"ds: 5 elements with stride 1 do not fit dim 0 of i32\[4\]"):
        x[sw.ds(0, 5)]
    with pytest.raises(TypeError, match="the start must be an integer scalar"):
        x[sw.ds(0.5, 2)]
    with pytest.raises(ValueError, match="size must not be negative"):
        sw.ds(0, -1)
    with pytest.raises(NotImplementedError, match="one `ds`"):
        jnp.ones((4, 4)).at[sw.ds(0, 2), sw.ds(0, 2)].set(1)
