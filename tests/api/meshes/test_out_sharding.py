"""`out_sharding`: the values and types of results that it decides."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)


ROWS = np.array([0, 2, 5], np.int32)
VALUES = np.float32([[1, 2, 3, 4]] * 3)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ("set", lambda x: np.concatenate([x[:0], VALUES])),
        ("add", lambda x: x + VALUES),
        ("subtract", lambda x: x - VALUES),
        ("multiply", lambda x: x * VALUES),
        ("mul", lambda x: x * VALUES),
        ("divide", lambda x: x / VALUES),
        ("power", lambda x: np.abs(x) ** VALUES),
        ("min", lambda x: np.minimum(x, VALUES)),
        ("max", lambda x: np.maximum(x, VALUES)),
    ],
)
@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
def test_updates_with_out_sharding(explicit_mesh, update, expected, under_jit):
    x = np.abs(X) if update == "power" else X
    function = lambda x, rows, values: getattr(x.at[rows], update)(values, out_sharding=P(None, "Y"))  # noqa: E731
    # Indices and values are sharded along X too: `out_sharding` decides.
    result = (sw.jit(function) if under_jit else function)(put(x, "X", None), put(ROWS), put(VALUES, None, "Y"))
    assert str(sw.typeof(result)) == "f32[8,4@Y]"
    reference = x.copy()
    reference[ROWS] = expected(x[ROWS])
    np.testing.assert_allclose(result, reference, rtol=1e-6)


@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
def test_embedding_lookup_with_out_sharding(explicit_mesh, under_jit):
    table = RNG.normal(size=(16, 6)).astype(np.float32)
    tokens = RNG.integers(0, 16, (8, 3)).astype(np.int32)

    def lookup(table, tokens):
        return table.at[tokens].get(out_sharding=P("X", None, None))

    def loss(table, tokens):
        return (lookup(table, tokens) ** 2).sum()

    args = put(table, None, "X"), put(tokens, "X")  # both operands would shard the result along X
    result = (sw.jit(lookup) if under_jit else lookup)(*args)
    assert str(sw.typeof(result)) == "f32[8@X,3,6]"
    np.testing.assert_array_equal(result, table[tokens])
    gradient = (sw.jit(sw.grad(loss)) if under_jit else sw.grad(loss))(*args)
    assert str(sw.typeof(gradient)) == "f32[16,6@X]"
    expected = np.zeros_like(table)
    np.add.at(expected, tokens, 2 * table[tokens])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


IDS = np.array([0, 0, 1, 1, 1, 2, 2, 3], np.int32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: sw.ops.segment_sum(x, put(IDS, "X"), 4, out_sharding=P(None, "Y")), lambda: add_at(X)),
        (lambda x: jnp.repeat(x, 2, 0, out_sharding=P("Y")), lambda: np.repeat(X, 2, 0)),
        (lambda x: jnp.reshape(x, (2, 16), out_sharding=P("Y")), lambda: X.reshape(2, 16)),
        (lambda x: lax.reshape(x, (2, 16), out_sharding=P("Y")), lambda: X.reshape(2, 16)),
        (lambda x: x.ravel(out_sharding=P("Y")), X.ravel),
        (lambda x: jnp.percentile(x, 50, 0, out_sharding=P("X")), lambda: np.percentile(X, 50, 0)),
        (lambda x: jnp.broadcast_to(x, (2, 8, 4), out_sharding=P("Y", "X")), lambda: np.broadcast_to(X, (2, 8, 4))),
        (lambda x: jnp.tensordot(x, x, (0, 0), out_sharding=P("X", "Y")), lambda: X.T @ X),
        (lambda x: jnp.matmul(x, x.T, out_sharding=P("X", "Y")), lambda: X @ X.T),
        (lambda x: lax.reduce_sum(x, (0,), out_sharding=P("X")), lambda: X.sum(0)),
        (lambda x: lax.reduce_max(x, (0,), out_sharding=P("X")), lambda: X.max(0)),
        (lambda x: lax.reduce_min(x, (0,), out_sharding=P("X")), lambda: X.min(0)),
        (lambda x: sw.nn.one_hot(x[:, 0] > 0, 2, out_sharding=P("X", "Y")), lambda: np.eye(2)[1 * (X[:, 0] > 0)]),
        (lambda x: jnp.asarray(X, out_sharding=P("X")) + x, lambda: 2 * X),
        (lambda x: jnp.array(X, out_sharding=P("X")) + x, lambda: 2 * X),
        (lambda x: jnp.full((8, 4), 2.0, out_sharding=P("X")) * x, lambda: 2 * X),
    ],
    ids=[
        "segment_sum",
        "repeat",
        "reshape",
        "lax.reshape",
        "ravel",
        "percentile",
        "broadcast_to",
        "tensordot",
        "matmul",
        "reduce_sum",
        "reduce_max",
        "reduce_min",
        "one_hot",
        "asarray",
        "array",
        "full",
    ],
)
@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
def test_results_with_out_sharding_equal_those_of_numpy(explicit_mesh, function, expected, under_jit):
    result = (sw.jit(function) if under_jit else function)(put(X, "X", "Y"))
    np.testing.assert_allclose(result, expected(), rtol=1e-4, atol=1e-5)
    assert sw.typeof(result).sharding.spec != P() and result.sharding.mesh == explicit_mesh


def add_at(x):
    result = np.zeros((4, 4), np.float32)
    np.add.at(result, IDS, x)
    return result


def test_out_sharding_names_no_memory(explicit_mesh):
    sharding = NamedSharding(explicit_mesh, P("X"), memory_kind="pinned_host")
    if sharding.nondefault_memory is None:
        pytest.skip("pinned_host is the default memory of these devices")
    with pytest.raises(ShardingError, match=r"names a memory.*device_put"):
        jnp.reshape(put(X, "X"), (4, 8), out_sharding=sharding)


def test_vmap_keeps_the_mapped_dim_beside_out_sharding(explicit_mesh):
    x = put(np.arange(32, dtype=np.float32).reshape(4, 8), None, "X")

    def f(column):
        row = lax.reshape(column, (2, 2), out_sharding=P(None, "Y"))
        assert str(sw.typeof(row)) == "f32[2,2@Y]"
        return row * 2

    result = sw.jit(sw.vmap(f, in_axes=1))(x)
    assert str(sw.typeof(result)) == "f32[8@X,2,2@Y]"
    np.testing.assert_array_equal(result, 2 * np.arange(32).reshape(4, 8).T.reshape(8, 2, 2))


def test_broadcast_like_has_the_sharding_of_its_model(explicit_mesh):
    like = put(X, "X", None)
    result = lax.broadcast_like(np.arange(4.0, dtype=np.float32), like)
    assert str(sw.typeof(result)) == "f32[8@X,4]"
    np.testing.assert_array_equal(result, np.broadcast_to(np.arange(4.0), (8, 4)))
    with pytest.raises(ShardingError, match=r"f32\[4@Y\] broadcasts to f32\[8,4@Y\].*f32\[8@X,4\].*reshard"):
        lax.broadcast_like(put(np.arange(4.0, dtype=np.float32), "Y"), like)
