"""`x[...]` with indices that are known: as numpy, and on integers beyond the ends as JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.indexing import indexing_ops
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


class _Index:
    def __getitem__(self, index):
        return index


at = _Index()
INDICES = [
    at[0],
    at[-1],
    at[np.int32(2)],
    at[np.array(1)],
    at[1:3],
    at[:],
    at[...],
    at[()],
    at[::2],
    at[::-1],
    at[4:1:-2],
    at[1:1],
    at[3:1],
    at[-3:100],
    at[100:],
    at[-1:-100:-3],
    at[2, 3],
    at[2, 3, 1],
    at[:, 1],
    at[..., 1],
    at[..., 1:, ::-1],
    at[0, ..., 0],
    at[None],
    at[..., None],
    at[:, None, 2],
    at[None, 1, None, ..., None],
    at[1:, ::-2, None, -1],
    at[1, :, 1:1],
    at[np.int64(1) :, : np.int8(2)],
]


def example():
    return np.arange(5 * 4 * 3, dtype=np.float32).reshape(5, 4, 3)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_like_numpy(index):
    x = example()
    np.testing.assert_array_equal(jnp.asarray(x)[index], x[index])


def test_traced_arrays_have_the_same_indices():
    x = example()
    found = sw.jit(lambda x: [x[index] for index in INDICES])(x)
    for index, got in zip(INDICES, found, strict=True):
        np.testing.assert_array_equal(got, x[index])


def test_integers_beyond_the_ends_mean_the_element_there():
    x = jnp.arange(3)
    assert [int(x[5]), int(x[-4]), int(sw.jit(lambda x: x[3])(x))] == [2, 0, 2]
    with pytest.raises(IndexError, match=r"index: 0 is out of bounds for dim 1 of f32\[2,0\], which has no elements"):
        jnp.zeros((2, 0))[:, 0]


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (at[1:3], ["slice"]),
        (at[::-1], ["reverse"]),
        (at[3], ["slice", "reshape"]),
        (at[..., None], ["reshape"]),
        (at[0, ::-2], ["slice", "reverse", "reshape"]),
        (at[:, 0:4, ...], []),
    ],
    ids=str,
)
def test_no_more_ops_than_needed(index, names):
    assert [op.name for op in indexing_ops(index, ArrayType((5, 4, 3), np.float32))] == names


def test_an_index_that_takes_everything_is_the_array():
    x = jnp.ones((2, 3))
    assert x[:] is x
    assert x[..., 0:3] is x


KNOWN = "an index is made of integers, slices, None and `...` that are known now"


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (at[jnp.array(1)], NotImplementedError, f"by the array i32[]~ yet: {KNOWN}. Read a number out with `int(i)`"),
        (at[np.array([0, 1])], NotImplementedError, f"by an array of shape (2,) yet: {KNOWN}"),
        (at[True], NotImplementedError, f"by the boolean True yet: {KNOWN}"),
        (at[1, np.array([True, False])], NotImplementedError, f"by an array of shape (2,) yet: {KNOWN}"),
        (at[1.5], TypeError, f"index: f32[5,4,3] cannot be indexed by 1.5: {KNOWN}"),
        (at["a"], TypeError, f"index: f32[5,4,3] cannot be indexed by 'a': {KNOWN}"),
        (at[[0, 1]], TypeError, f"index: f32[5,4,3] cannot be indexed by [0, 1]: {KNOWN}"),
        (at[0, 0, 0, 0], IndexError, "index: 4 entries are too many for f32[5,4,3], which has rank 3"),
        (at[..., ...], IndexError, "index: only one entry can be `...`"),
        (at[::0], ValueError, "slice step cannot be zero"),
    ],
    ids=str,
)
def test_wrong_indices(index, error, message):
    with pytest.raises(error) as caught:
        jnp.asarray(example())[index]
    assert message in str(caught.value)


def test_traced_indices_are_refused():
    with pytest.raises(NotImplementedError, match=r"f32\[3\] cannot be indexed by the array i32\[\]~? yet"):
        sw.jit(lambda x, i: x[i])(jnp.ones(3), 1)
    with pytest.raises(sw.errors.TracerIntegerConversionError, match="Python needs an integer here"):
        sw.jit(lambda x, i: x[i:])(jnp.ones(3), 1)


@pytest.mark.parametrize("count", [0, 1, 5, 70])
def test_iteration(count):
    x = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    rows = list(jnp.asarray(x))
    assert len(rows) == count == len(jnp.asarray(x))
    for row, expected in zip(rows, x, strict=True):
        np.testing.assert_array_equal(row, expected)
    traced = sw.jit(lambda x: [row * 2 for row in x])(x)
    np.testing.assert_array_equal(np.array([np.asarray(row) for row in traced]).reshape(count, 2), x * 2)


def test_iteration_over_nothing_to_iterate():
    with pytest.raises(TypeError, match="a 0-d array cannot be iterated over"):
        iter(jnp.array(1.0))


def test_unpacking():
    a, (b, c) = jnp.array([[1, 2], [3, 4]])
    assert (a.tolist(), int(b), int(c)) == ([1, 2], 3, 4)


def test_gradients_go_back_to_where_the_elements_were():
    x = example()
    gradient = sw.grad(lambda x: (x[1:4, ::-2, 0] * x[0, 1, 2]).sum() + 2 * x[-1, -1, -1])(x)
    expected = np.zeros_like(x)
    expected[1:4, ::-2, 0] += x[0, 1, 2]
    expected[0, 1, 2] += x[1:4, ::-2, 0].sum()
    expected[-1, -1, -1] += 2
    np.testing.assert_allclose(gradient, expected)


@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", None, "data")], ids=str)
def test_on_a_mesh(mesh, spec):
    x = example()
    sharded = sw.device_put(x, NamedSharding(mesh, spec))
    for index in INDICES:
        np.testing.assert_array_equal(sharded[index], x[index])
