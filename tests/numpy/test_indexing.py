"""take, take_along_axis, where, nonzero and similar functions: values and dtypes like JAX, eager ones like numpy."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.array([[0, 3, 0, 4], [5, 0, 0, 1], [0, 2, 6, 0]], np.float32)
TABLE = np.array([[0, 2], [-1, 99]])
CALLS = {
    **{
        f"take {axis} {mode}": lambda np, x, axis=axis, mode=mode: np.take(x, TABLE, axis=axis, mode=mode)
        for axis in (None, 0, 1, -1)
        for mode in (None, "fill", "clip", "wrap")
    },
    "take one": lambda np, x: np.take(x, 1, axis=0),
    "take one outside": lambda np, x: np.take(x, 5, axis=0, fill_value=7),
    "take integers": lambda np, x: np.take(x.astype("int32"), np.array([0, 99])),
    "along rows": lambda np, x: np.take_along_axis(x, np.array([[0], [-1], [9]]), 1),
    "along columns": lambda np, x: np.take_along_axis(x, np.array([[0, 1, -1, 2]]), 0),
    "along all": lambda np, x: np.take_along_axis(x, np.array([0, -1, 5]), None),
    "along, clipped": lambda np, x: np.take_along_axis(x, np.array([[0, -1, 9, -9]]), 1, mode="clip"),
    "along, filled": lambda np, x: np.take_along_axis(x, np.array([[0, -1, 9, -9]]), 1, fill_value=3),
    "along, repeated": lambda np, x: np.take_along_axis(x[:1], np.array([[0, 1], [2, 3], [3, 3]]), 1),
    "nonzero few": lambda np, x: np.nonzero(x, size=3),
    "nonzero many": lambda np, x: np.nonzero(x, size=8, fill_value=-1),
    "nonzero, filled by dim": lambda np, x: np.nonzero(x, size=8, fill_value=(7, 9)),
    "nonzero one": lambda np, x: np.nonzero(x > 3, size=1),
    "nonzero none": lambda np, x: np.nonzero(x, size=0),
    "nonzero of zeros": lambda np, x: np.nonzero(x * 0, size=2),
    "argwhere": lambda np, x: np.argwhere(x, size=7),
    "flatnonzero": lambda np, x: np.flatnonzero(x, size=7, fill_value=12),
    "where": lambda np, x: np.where(x > 2, size=5, fill_value=1),
    "where of three": lambda np, x: np.where(x > 2, x, -1),
    "unravel_index": lambda np, x: np.unravel_index(np.array([0, 5, 50, -1, -50]), (3, 4)),
    "unravel_index in one dim": lambda np, x: np.unravel_index(np.array([[1], [0]]), 4),
    "ix_": lambda np, x: np.ix_(np.array([0, 1]), np.array([2, 3, 0]), np.array([1])),
    "along, without negative indices": lambda np, x: np.take_along_axis(
        x, np.array([[0, -1, 9, 1]]), 1, wrap_negative_indices=False
    ),
    "x[ix_]": lambda np, x: x[np.ix_(np.array([0, 2]), np.array([2, 3, 0]))],
}


def leaves(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.table(default=7)
@pytest.mark.jax
@pytest.mark.parametrize("name", CALLS)
def test_like_jax(name):
    jax = pytest.importorskip("jax")
    call = CALLS[name]
    expected = leaves(jax.jit(lambda x: call(jax.numpy, x))(X))
    for found in (call(jnp, jnp.asarray(X)), sw.jit(lambda x: call(jnp, x))(X)):
        for got, want in zip(leaves(found), expected, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("name", ["nonzero", "argwhere", "flatnonzero", "where"])
def test_eager_nonzero_like_numpy(name):
    for x in (X, X > 2, X * 0, X[:, :0], X[0]):
        found = getattr(jnp, name)(jnp.asarray(x))
        for got, want in zip(leaves(found), leaves(getattr(np, name)(x)), strict=True):
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_gradients():
    index = np.array([[2, 0], [1, 1], [9, -1]])

    def loss(x):
        return (jnp.take_along_axis(x, index, 1, fill_value=0) * index).sum() + (
            jnp.take(x, np.array([1, 1, 8]), 0) * X
        )[:2].sum()

    expected = np.zeros_like(X)
    np.add.at(expected, (np.arange(3)[:, None], np.where(index == 9, 0, index)), np.where(index == 9, 0, index))
    expected[1] += X[0] + X[1]
    np.testing.assert_allclose(sw.grad(loss)(X), expected)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", "data")], ids=str)
def test_sharded_like_one_device(mesh, spec):
    x = sw.device_put(X, NamedSharding(mesh, spec))
    names = list(CALLS)
    found = sw.jit(lambda x: [CALLS[name](jnp, x) for name in names])(x)
    expected = sw.jit(lambda x: [CALLS[name](jnp, x) for name in names])(X)
    for got, want in zip(found, expected, strict=True):
        for a, b in zip(leaves(got), leaves(want), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.take(X, 1.5), ValueError, "take: indices must be integers, not f32[]~"),
        (lambda: jnp.take(X, [0, 1]), TypeError, "take: needs an array or a number, not [0, 1] of type list"),
        (lambda: jnp.take(X, 0, axis=2), ValueError, "take: axis 2 does not exist in an array of rank 2"),
        (
            lambda: jnp.take(X, 0, mode="raise"),
            NotImplementedError,
            "take: mode='raise' is not supported; use 'fill', 'clip' or 'wrap'",
        ),
        (
            lambda: jnp.take(X, 0, mode="bogus"),
            ValueError,
            "take: unknown mode 'bogus'; supported: clip, fill, drop, promise_in_bounds, wrap",
        ),
        (
            lambda: jnp.take(X, 0, 0, X),
            NotImplementedError,
            "take: arrays are immutable, so `out` must be None; use the result",
        ),
        (
            lambda: jnp.take_along_axis(X, np.array([0, 1]), 0),
            ValueError,
            "take_along_axis: f32[3,4] and the indices i32[2] must have equal ranks",
        ),
        (
            lambda: jnp.take_along_axis(X, X, 0),
            TypeError,
            "take_along_axis: indices must be integers, not f32[3,4]",
        ),
        (
            lambda: jnp.nonzero(1.0),
            ValueError,
            "nonzero: a 0-d array has no indices; add a dim first, `x[None]`",
        ),
        (
            lambda: sw.jit(jnp.argwhere)(X),
            sw.errors.ConcretizationTypeError,
            "argwhere: f32[3,4] is traced, so the number of nonzero elements and the shape of the result are unknown. "
            "Pass an upper bound: `argwhere(a, size=...)`",
        ),
        (
            lambda: jnp.nonzero(X, size=2, fill_value=(1, 2, 3)),
            ValueError,
            "nonzero: 3 fill values for f32[3,4], which has rank 2",
        ),
        (lambda: jnp.where(X, X), ValueError, "where: pass both x and y, or neither"),
        (lambda: jnp.where(X, X, 0, size=2), ValueError, "where: size and fill_value are only allowed without x and y"),
        (lambda: jnp.ix_(X), ValueError, "ix_: index arrays must have rank 1, not f32[3,4]"),
        (
            lambda: sw.jit(jnp.ix_)(X[0] > 0),
            sw.errors.ConcretizationTypeError,
            "nonzero: bool[4] is traced, so the number of nonzero elements and the shape of the result are unknown. "
            "Pass an upper bound: `nonzero(a, size=...)`",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).splitlines()[0] == message


def test_ix_accepts_boolean_masks():
    """numpy accepts them too, JAX does not."""
    rows, columns = np.array([True, False, True]), np.array([2, 3, 0])
    for ours, theirs in zip(jnp.ix_(rows, columns), np.ix_(rows, columns), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(jnp.asarray(X)[jnp.ix_(rows, columns)], X[np.ix_(rows, columns)])


@pytest.mark.parametrize("function", [jnp.nonzero, jnp.argwhere, jnp.flatnonzero, jnp.where])
def test_indices_of_sharded_arrays_are_replicated_on_their_mesh(function, mesh):
    host = np.arange(16).reshape(8, 2) % 3
    x = sw.device_put(host, NamedSharding(mesh, P("data")))
    results = sw.tree.leaves(function(x))
    expected = getattr(np, function.__name__)(host)
    np.testing.assert_array_equal(np.stack(results), np.stack(expected if isinstance(expected, tuple) else [expected]))
    for result in results:
        assert result.sharding == NamedSharding(mesh, P()) and result.committed
    on_one = sw.device_put(host, sw.devices()[3])
    assert all(result.devices() == {sw.devices()[3]} for result in sw.tree.leaves(function(on_one)))
    assert not any(result.committed for result in sw.tree.leaves(function(jnp.asarray(host))))


@pytest.mark.parametrize(
    "call",
    [
        jnp.unique,
        lambda x: jnp.extract(x > 1, x),
        lambda x: x[x > 1],
        lambda x: jnp.union1d(x, x),
        lambda x: jnp.setdiff1d(x, jnp.ones(1, x.dtype)),
    ],
)
def test_results_with_shapes_that_depend_on_values_are_on_the_mesh(call, mesh):
    host = np.arange(16).reshape(8, 2) % 3
    result = call(sw.device_put(host, NamedSharding(mesh, P("data"))))
    assert result.sharding == NamedSharding(mesh, P())
    np.testing.assert_array_equal(result, call(jnp.asarray(host)))


@pytest.mark.parametrize(
    "shape, index_shape, axis",
    [((3, 0), (2, 0), 0), ((3, 0), (2, 1), 0), ((0, 3), (0, 3), 0), ((2, 0, 4), (2, 0, 3), 2), ((0, 0), (0, 0), 1)],
)
def test_take_along_axis_of_an_empty_array_is_empty(mesh, shape, index_shape, axis):
    x, indices = np.zeros(shape, np.float32), np.zeros(index_shape, np.int32)
    batch = [1 if dim == axis else size for dim, size in enumerate(shape)]
    expected = np.take_along_axis(x, np.broadcast_to(indices, np.broadcast_shapes(batch, index_shape)), axis).shape
    for spec in (P(), P("data"), P(None, "model")):
        sharded = sw.device_put(x, sw.NamedSharding(mesh, spec))
        assert sw.jit(jnp.take_along_axis, static_argnums=2)(sharded, indices, axis).shape == expected
        gradient = sw.jit(sw.grad(lambda x: jnp.take_along_axis(x, indices, axis).sum()))(sharded)
        assert gradient.shape == shape


def test_take_along_an_empty_axis_is_an_index_error():
    with pytest.raises(IndexError, match=r"dim 0 of f32\[0,3\] is empty and cannot be indexed by integers"):
        jnp.take_along_axis(np.zeros((0, 3), np.float32), np.zeros((2, 3), np.int32), 0)
