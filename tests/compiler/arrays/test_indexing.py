"""Indexing like numpy; out of bounds and with traced indices like JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import rewrite
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
    at[True],
]
ROW, COLUMN = np.array([0, 2, -1]), np.array([[1], [-2]])
MASK = np.array([True, False, True, False, True])
# With boolean arrays, and with integer arrays that are in bounds and may repeat.
ARRAYS = [
    at[ROW],
    at[COLUMN],
    at[np.array([1, 1, 0, 1])],
    at[ROW, ROW],
    at[ROW, COLUMN],
    at[:, ROW],
    at[..., ROW],
    at[ROW, :, ROW],
    at[:, ROW, COLUMN],
    at[ROW, None, ROW],
    at[None, ROW],
    at[1, :, COLUMN],
    at[:, 1, COLUMN],
    at[ROW, 1:3],
    at[::-1, ROW, ::2],
    at[ROW, COLUMN, 0],
    at[np.zeros((0,), np.int32)],
    at[np.zeros((2, 0), np.int32), 1],
    at[ROW, 3:1],
    at[np.array([3, 1], np.uint8)],
    at[np.array([3, -1], np.int8)],
    at[[0, 2, 1], :],
    at[:, (1, -1)],
    at[[[0], [2]], [1, 2]],
    at[[True, False, True, False, True], 1:],
    at[[], 1],
    at[MASK],
    at[MASK, 1],
    at[MASK, :, ROW],
    at[:, np.array([True, True, False, False])],
    at[np.arange(60).reshape(5, 4, 3) % 7 > 3],
    at[1:, np.arange(12).reshape(4, 3) > 3],
    at[np.zeros(5, np.bool_)],
]
# With indices out of bounds.
OUT_OF_BOUNDS = [
    at[5],
    at[-6],
    at[9, -9, 1],
    at[np.array([5, -6, 77, -77, 2])],
    at[1, np.array([[3], [99]]), ROW],
    at[:, np.array([2**31 - 1, -(2**31), 0], np.int32)],
    at[np.array([200, 1], np.uint8)],
]


def example():
    return np.arange(5 * 4 * 3, dtype=np.float32).reshape(5, 4, 3)


@pytest.mark.parametrize("index", [*INDICES, *ARRAYS], ids=str)
def test_like_numpy(index):
    x = example()
    np.testing.assert_array_equal(jnp.asarray(x)[index], x[index])


def test_traced_arrays_like_numpy():
    x = example()
    indices = [*INDICES, *ARRAYS]
    results = sw.jit(lambda x: [x[index] for index in indices])(x)
    for index, actual in zip(indices, results, strict=True):
        np.testing.assert_array_equal(actual, x[index])


def split(index):
    """Return the entries of an index, and its integers and integer arrays by position."""
    entries = index if isinstance(index, tuple) else (index,)

    def is_number(entry):
        return (isinstance(entry, (int, np.integer)) and not isinstance(entry, bool)) or (
            isinstance(entry, np.ndarray) and entry.dtype != np.bool_
        )

    return entries, {str(n): entry for n, entry in enumerate(entries) if is_number(entry)}


def joined(entries, numbers):
    return tuple(numbers.get(str(index), entry) for index, entry in enumerate(entries))


@pytest.mark.parametrize("index", [*INDICES, *ARRAYS], ids=str)
def test_traced_indices_like_numpy(index):
    x = example()
    entries, numbers = split(index)
    result = sw.jit(lambda x, numbers: x[joined(entries, numbers)])(x, numbers)
    np.testing.assert_array_equal(result, x[index])


@pytest.mark.jax
@pytest.mark.parametrize("index", OUT_OF_BOUNDS, ids=str)
def test_indices_out_of_bounds_like_jax(index):
    jax = pytest.importorskip("jax")
    x = example()
    expected = jax.numpy.asarray(x)[index]
    entries, numbers = split(index)
    np.testing.assert_array_equal(jnp.asarray(x)[index], expected)
    np.testing.assert_array_equal(sw.jit(lambda x: x[index])(x), expected)
    np.testing.assert_array_equal(sw.jit(lambda x, numbers: x[joined(entries, numbers)])(x, numbers), expected)


def test_integers_out_of_bounds_are_clamped():
    x = jnp.arange(3)
    assert [int(x[5]), int(x[-4]), int(sw.jit(lambda x: x[3])(x))] == [2, 0, 2]
    assert x[np.array([5, -4])].tolist() == [2, 0]
    message = r"index: dim 1 of f32\[2,0\] is empty and cannot be indexed by integers"
    for entry in (0, np.array([0])):
        with pytest.raises(IndexError, match=message):
            jnp.zeros((2, 0))[:, entry]
    assert jnp.zeros((2, 0))[:, np.zeros((0,), np.int32)].shape == (2, 0)


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (at[1:3], ["slice"]),
        (at[::-1], ["reverse"]),
        (at[3], ["full", "full", "dynamic_slice", "reshape"]),
        (at[..., None], ["reshape"]),
        (at[0, ::-2], ["slice", "reverse", "full", "full", "dynamic_slice", "reshape"]),
        (at[:, 0:4, ...], []),
    ],
    ids=str,
)
def test_an_index_stages_no_more_ops_than_needed(index, names):
    program = rewrite("indexed", [ArrayType((5, 4, 3), np.float32)], lambda x: [x[index]])
    assert [equation.op.name for equation in program.equations] == names


def test_an_index_of_everything_returns_the_array_itself():
    x = jnp.ones((2, 3))
    assert x[:] is x
    assert x[..., 0:3] is x


SUPPORTED = "an index consists of integers, slices, None, `...` and arrays of integers or booleans"


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (at[1.5], TypeError, f"index: f32[5,4,3] cannot be indexed by 1.5: {SUPPORTED}"),
        (at["a"], TypeError, f"index: f32[5,4,3] cannot be indexed by 'a': {SUPPORTED}"),
        (
            at[[0, 1]],
            TypeError,
            f"index: f32[5,4,3] cannot be indexed by [0, 1]: {SUPPORTED}; convert it to an array, `x[array(...)]`",
        ),
        (
            at[[[0], [1, 2]], 0],
            TypeError,
            f"index: f32[5,4,3] cannot be indexed by [[0], [1, 2]]: {SUPPORTED}; "
            "convert it to an array, `x[array(...)]`",
        ),
        (
            at[["a"], 0],
            TypeError,
            f"index: f32[5,4,3] cannot be indexed by ['a']: {SUPPORTED}; convert it to an array, `x[array(...)]`",
        ),
        (at[np.array([1.5])], TypeError, f"index: f32[5,4,3] cannot be indexed by f32[1]: {SUPPORTED}"),
        (at[jnp.ones(2)], TypeError, f"index: f32[5,4,3] cannot be indexed by f32[2]: {SUPPORTED}"),
        (
            at[1, np.array([True, False])],
            IndexError,
            "index: a boolean array of shape (2,) does not match the dims of f32[5,4,3] from dim 1 on",
        ),
        (at[ROW, np.array([0, 1])], IndexError, "index: index arrays of shapes (3,), (2,) do not broadcast"),
        (at[0, 0, 0, 0], IndexError, "index: 4 entries are too many for f32[5,4,3], which has rank 3"),
        (at[MASK, 0, 0, 0], IndexError, "index: 4 entries are too many for f32[5,4,3], which has rank 3"),
        (at[..., ...], IndexError, "index: only one entry can be `...`"),
        (at[::0], ValueError, "slice step cannot be zero"),
    ],
    ids=str,
)
def test_wrong_indices(index, error, message):
    with pytest.raises(error) as caught:
        jnp.asarray(example())[index]
    assert str(caught.value) == message


def test_slice_bounds_and_masks_must_be_concrete():
    with pytest.raises(IndexError, match=r"is traced, so the shape.*lax.dynamic_slice_in_dim"):
        sw.jit(lambda x, i: x[i:])(jnp.ones(3), 1)
    with pytest.raises(sw.errors.NonConcreteBooleanIndexError) as caught:
        sw.jit(lambda x: x[x > 0])(jnp.ones(3))
    assert str(caught.value) == (
        "index: bool[3] is traced, so the shape of the result is unknown. Use `numpy.where(mask, x, y)`, which "
        "keeps the shape, or state the number of true elements: `x[numpy.nonzero(mask, size=...)]`"
    )
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(sw.grad(lambda x: (x[x > 0.5] * 3).sum())(x), [0, 3, 3])  # concrete outside of jit


@pytest.mark.parametrize("count", [0, 1, 5, 70])
def test_iteration(count):
    x = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    rows = list(jnp.asarray(x))
    assert len(rows) == count == len(jnp.asarray(x))
    for row, expected in zip(rows, x, strict=True):
        np.testing.assert_array_equal(row, expected)
    traced = sw.jit(lambda x: [row * 2 for row in x])(x)
    np.testing.assert_array_equal(np.array([np.asarray(row) for row in traced]).reshape(count, 2), x * 2)


def test_iteration_over_a_scalar_raises():
    with pytest.raises(TypeError, match="a 0-d array cannot be iterated over"):
        iter(jnp.array(1.0))


def test_unpacking():
    a, (b, c) = jnp.array([[1, 2], [3, 4]])
    assert (a.tolist(), int(b), int(c)) == ([1, 2], 3, 4)


def test_gradients_of_indexing():
    x = example()

    def loss(x):
        return (
            (x[1:4, ::-2, 0] * x[0, 1, 2]).sum() + 2 * x[-1, -1, -1] + (x[ROW, 1] * x[np.array([1, 1, 9])][:, 0]).sum()
        )

    expected = np.zeros_like(x)
    expected[1:4, ::-2, 0] += x[0, 1, 2]
    expected[0, 1, 2] += x[1:4, ::-2, 0].sum()
    expected[-1, -1, -1] += 2
    np.add.at(expected, (ROW, 1), x[[1, 1, 4], 0])
    np.add.at(expected, ([1, 1, 4], 0), x[ROW, 1])
    np.testing.assert_allclose(sw.grad(loss)(x), expected)


def test_all_static_indices_share_one_program():
    x = jnp.asarray(example())
    x[1, 2]
    launches = dispatch.executor._launches
    before = len(launches)
    assert [float(x[i, j].sum()) for i in range(5) for j in range(4)] == example().sum(2).reshape(-1).tolist()
    assert len(launches) <= before + 1  # the sum


@pytest.mark.table(default=1)
@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", None, "data"), P(("data", "model"))], ids=str)
def test_on_a_mesh(mesh, spec):
    x = example()
    sharded = sw.device_put(x, NamedSharding(mesh, spec))
    for index in INDICES:
        np.testing.assert_array_equal(sharded[index], x[index])
    results = sw.jit(lambda x: [x[index] for index in [*ARRAYS, *OUT_OF_BOUNDS]])(sharded)
    expected = sw.jit(lambda x: [x[index] for index in [*ARRAYS, *OUT_OF_BOUNDS]])(x)
    for actual, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(actual, array)
