"""Basic numpy functions: values against numpy, and sharded against unsharded operands."""

import ml_dtypes
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


@pytest.mark.table(default=9)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (1, -1), ()], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_reductions(name, axis, keepdims):
    (x,) = arrays((2, 3, 4))
    got = getattr(jnp, name)(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(got, getattr(np, name)(x, axis=axis, keepdims=keepdims), rtol=1e-5, atol=1e-6)
    method = getattr(jnp.asarray(x), name)(axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(method, got)


@pytest.mark.table(default=4)
@pytest.mark.parametrize(
    "shapes",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (1, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)),
        ((2, 1, 2, 3), (4, 3, 2)),
    ],
    ids=str,
)
def test_matmul(shapes):
    a, b = arrays(*shapes)
    np.testing.assert_allclose(jnp.matmul(a, b), np.matmul(a, b), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jnp.asarray(a) @ b, np.matmul(a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("shapes", [((), (3,)), ((3,), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (4, 3, 2))], ids=str)
def test_dot(shapes):
    a, b = arrays(*shapes)
    np.testing.assert_allclose(jnp.dot(a, b), np.dot(a, b), rtol=1e-5, atol=1e-5)


def test_where_broadcasts_all_operands():
    c, x, y = RNG.random((3, 1)) > 0.5, *arrays((1, 4), (4,))
    np.testing.assert_array_equal(jnp.where(c, x, y), np.where(c, x, y))
    np.testing.assert_array_equal(jnp.where(np.array([0, 2]), 1.0, 2.0), [2, 1])


def test_reshape_transpose_broadcast_and_astype():
    (x,) = arrays((2, 3, 4))
    np.testing.assert_array_equal(jnp.reshape(x, (4, -1)), x.reshape(4, -1))
    np.testing.assert_array_equal(jnp.asarray(x).reshape([6, 4]), x.reshape(6, 4))
    np.testing.assert_array_equal(jnp.transpose(x, (1, 2, 0)), x.transpose(1, 2, 0))
    np.testing.assert_array_equal(jnp.asarray(x).transpose(2, 0, 1), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(jnp.broadcast_to(x[:, :1], (5, 2, 3, 4)), np.broadcast_to(x[:, :1], (5, 2, 3, 4)))
    np.testing.assert_array_equal(jnp.asarray(x).astype(jnp.int32), x.astype(np.int32))


def test_creation():
    np.testing.assert_array_equal(jnp.zeros((2, 3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(jnp.ones(3, jnp.int32), [1, 1, 1])
    np.testing.assert_array_equal(jnp.full((2,), 7), [7, 7])
    np.testing.assert_array_equal(jnp.full((2, 2), jnp.arange(2)), [[0, 1], [0, 1]])
    for args in ((5,), (2, 8), (1, 10, 3), (10, 0, -3), (0.5, 3), (3, 0)):
        np.testing.assert_allclose(jnp.arange(*args), np.arange(*args))
    np.testing.assert_array_equal(jnp.eye(3, 4, 1), np.eye(3, 4, 1))
    np.testing.assert_array_equal(jnp.zeros_like(np.ones(2)), [0, 0])
    assert jnp.array([1, 2]).dtype == np.int32
    assert jnp.array([1.5]).dtype == np.float32
    assert jnp.array(np.ones(2)).dtype == np.float32
    assert jnp.array(np.ones(2, np.float16)).dtype == np.float16
    with pytest.raises(ValueError, match="step must not be 0"):
        jnp.arange(1, 2, 0)


def test_operators_with_numpy_left_operands():
    (x,) = arrays((3,))
    assert isinstance(x + jnp.asarray(x), sw.Array)
    np.testing.assert_allclose(x - jnp.asarray(x), np.zeros(3))
    np.testing.assert_allclose(2 / jnp.asarray(x), 2 / x, rtol=1e-6)
    with pytest.raises(TypeError):
        jnp.asarray(x) + "a"


def test_narrow_dtypes_accumulate_in_wider_ones():
    x = np.full(4096, 1.0, ml_dtypes.bfloat16)
    assert float(jnp.sum(x)) == 4096.0
    assert jnp.sum(x).dtype == ml_dtypes.bfloat16
    assert int(jnp.sum(np.full(1000, 100, np.int8))) == 100000


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
