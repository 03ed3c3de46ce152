"""Binary functions and operators against numpy, and sharded against unsharded operands."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)


def arrays(*shapes, dtype=np.float32):
    return [(RNG.normal(size=shape) * 3).astype(dtype) for shape in shapes]


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 1, 4), (3, 1)), ((), (3,)), ((0, 3), (1, 3))]


@pytest.mark.table(default=44)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_binary_functions(name, shapes, dtype):
    a, b = arrays(*shapes, dtype=dtype)
    b = np.where(b == 0, 1, b).astype(dtype)
    got = getattr(jnp, name)(a, b)
    np.testing.assert_allclose(got, BINARY[name](a, b), rtol=1e-6)


def test_where_broadcasts_all_operands():
    c, x, y = RNG.random((3, 1)) > 0.5, *arrays((1, 4), (4,))
    np.testing.assert_array_equal(jnp.where(c, x, y), np.where(c, x, y))
    np.testing.assert_array_equal(jnp.where(np.array([0, 2]), 1.0, 2.0), [2, 1])


def test_operators_with_numpy_left_operands():
    (x,) = arrays((3,))
    assert isinstance(x + jnp.asarray(x), sw.Array)
    np.testing.assert_allclose(x - jnp.asarray(x), np.zeros(3))
    np.testing.assert_allclose(2 / jnp.asarray(x), 2 / x, rtol=1e-6)
    with pytest.raises(TypeError):
        jnp.asarray(x) + "a"


@pytest.mark.table(default=1)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [8, 10, 3])
def test_sharded_operands_give_the_same_values(mesh, dim, size):
    shape = (size, 6) if dim == 0 else (6, size)
    a, b = arrays(shape, shape)
    sharding = NamedSharding(mesh, P("data") if dim == 0 else P(None, "data"))
    sharded = sw.device_put(a, sharding), sw.device_put(b, sharding)
    for function in (jnp.add, jnp.divide, jnp.maximum, jnp.less, lambda x, y: x.T @ y, lambda x, y: x @ y.T):
        np.testing.assert_allclose(function(*sharded), function(a, b), rtol=1e-5, atol=1e-5)
    for function in (jnp.sum, jnp.mean, jnp.exp, lambda x: x.sum(0), lambda x: x.sum(1), lambda x: x.reshape(-1)):
        np.testing.assert_allclose(function(sharded[0]), function(a), rtol=1e-5, atol=1e-5)
