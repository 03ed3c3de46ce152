"""`x.at[...]`: values, dtypes and derivatives like JAX; on a mesh like on one device; errors."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.compiler.arrays.test_indexing import ARRAYS, INDICES, OUT_OF_BOUNDS, at, example, joined, split

METHODS = ("set", "add", "subtract", "multiply", "divide", "power", "min", "max")
UNIQUE = [
    at[2],
    at[1:4],
    at[:, ::-2, 1:],
    at[np.array([3, 0]), 1:3],
    at[..., None, np.array([2, 0])],
    at[7],
    at[4, -1, 0],
]


def values(shape, index):
    """Return values that differ from all elements, so that the derivative of a maximum is defined."""
    rng = np.random.default_rng(len(str(index)))
    return (rng.permutation(int(np.prod(shape))).reshape(shape) / 2 + 0.75).astype(np.float32)


def reference(x, index, method, updates):
    """Compute the update in numpy. All indices must be in bounds."""
    ufuncs = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
    ufuncs |= {"power": np.power, "min": np.minimum, "max": np.maximum}
    result = x.copy()
    if method == "set":
        result[index] = updates
    else:
        ufuncs[method].at(result, index, updates)
    return result


@pytest.mark.table(default=12)
@pytest.mark.parametrize("index", [*INDICES[::2], *ARRAYS], ids=str)
def test_like_numpy(index):
    x = example() / 8 + 1
    shape = x[index].shape
    many = [1.5, values(shape, index), values(shape[-1:], index)]
    repeats = np.any(reference(np.zeros_like(x), index, "add", 1) > 1)
    methods = [
        method for method in METHODS if not (repeats and method in ("divide", "power"))
    ]  # these round differently
    result = sw.jit(lambda x: [getattr(x.at[index], method)(updates) for method in methods for updates in many])(x)
    with np.errstate(over="ignore"):
        expected = [reference(x, index, method, updates) for method in methods for updates in many]
    for actual, array in zip(result, expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=2e-6)


@pytest.mark.table(default=2)
@pytest.mark.jax
@pytest.mark.parametrize("index", [*UNIQUE, *ARRAYS[:4], ARRAYS[21], *OUT_OF_BOUNDS], ids=str)
def test_like_jax(index):
    """Also out of bounds, and with traced indices."""
    jax = pytest.importorskip("jax")
    x = example() / 8 + 1
    entries, numbers = split(index)
    updates = values(np.asarray(jax.numpy.asarray(x)[index]).shape, index)

    def update(x, numbers, updates):
        ref = x.at[joined(entries, numbers)]
        updated = [getattr(ref, method)(updates, mode=mode) for method in METHODS for mode in (None, "drop", "clip")]
        taken = [ref.get(mode=mode) for mode in (None, "fill", "clip", "drop")]
        return [*updated, *taken, ref.get(mode="fill", fill_value=7)]

    expected = jax.jit(update)(x, numbers, updates)
    eager = [jnp.asarray(x).at[index].set(updates), jnp.asarray(x).at[index].add(updates)]
    for result in (
        sw.jit(update)(x, numbers, updates),
        sw.jit(lambda x, updates: update(x, numbers, updates))(x, updates),
    ):
        for actual, array in zip(result, expected, strict=True):
            assert (actual.dtype, actual.weak_type) == (array.dtype, array.weak_type)
            np.testing.assert_allclose(actual, array, rtol=1e-5)
    for actual, array in zip(eager, (expected[0], expected[3]), strict=True):
        np.testing.assert_array_equal(actual, array)


@pytest.mark.table(default=3)
@pytest.mark.jax
@pytest.mark.parametrize("index", UNIQUE, ids=str)
def test_gradients_like_jax(index):
    jax = pytest.importorskip("jax")
    x = example() / 8 + 1
    updates = values(np.asarray(jax.numpy.asarray(x)[index]).shape, index)
    weights = np.cos(np.arange(60.0)).reshape(5, 4, 3).astype(np.float32)

    def loss(method):
        return lambda x, updates: (getattr(x.at[index], method)(updates, unique_indices=True) * weights).sum()

    def gradients(library):
        return library.jit(lambda x, updates: [library.grad(loss(method), (0, 1))(x, updates) for method in METHODS])(
            x, updates
        )

    for result, expected in zip(gradients(sw), gradients(jax), strict=True):
        for actual, array in zip(result, expected, strict=True):
            np.testing.assert_allclose(actual, array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["set", "add", "multiply", "divide", "power", "min", "max"])
def test_gradients_with_repeated_indices(method, monkeypatch):
    """Compare with finite differences in f64: JAX does not differentiate products."""
    x = np.array([0.5, 1.5, 2.5, 3.5])
    index = np.array([1, 3, 1, 9, -4, 1])
    updates = np.array([1.25, 0.75, 2.25, 9.0, 0.6, 1.75])
    weights = np.array([1.0, -2.0, 3.0, 0.5])

    def loss(x, updates):
        return (getattr(x.at[index], method)(updates) * weights).sum()

    monkeypatch.setattr(sw.config, "enable_x64", True)
    result = sw.grad(loss, (0, 1))(x, updates)
    run = sw.jit(loss)
    for number, (gradient, arg) in enumerate(zip(result, (x, updates), strict=True)):
        for position in range(arg.size):
            step = np.zeros_like(arg)
            step[position] = 1e-6
            ahead, behind = (
                run(*(a + sign * step if n == number else a for n, a in enumerate((x, updates)))) for sign in (1, -1)
            )
            slope = (float(ahead) - float(behind)) / 2e-6
            np.testing.assert_allclose(np.asarray(gradient)[position], slope, rtol=1e-6, atol=1e-7)


def test_gradients_of_products_with_zeros():
    updates = np.array([0.0, 2.0, 0.0, 5.0], np.float32)
    index = np.array([0, 0, 1, 1])
    x = np.array([3.0, 7.0], np.float32)
    to_x, to_updates = sw.grad(lambda x, v: x.at[index].multiply(v).sum(), (0, 1))(x, updates)
    np.testing.assert_array_equal(to_x, [0, 0])
    np.testing.assert_array_equal(to_updates, [6, 0, 35, 0])


@pytest.mark.parametrize("method", METHODS)
def test_vmap_like_a_loop(method):
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2) + 1
    index = np.array([[0, 3], [1, 1], [-1, 9]])
    updates = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 2, 2)

    def one(x, index, updates):
        return getattr(jnp.asarray(x).at[index], method)(updates)

    for dims in ((0, 0, 0), (None, 0, None), (0, None, 0)):
        args = [arg if dim == 0 else arg[0] for arg, dim in zip((x, index, updates), dims, strict=True)]
        result = sw.vmap(one, dims)(*args)
        for number, row in enumerate(result):
            each = [arg[number] if dim == 0 else arg for arg, dim in zip(args, dims, strict=True)]
            np.testing.assert_array_equal(row, one(*each))


def test_apply():
    x = jnp.arange(5.0)
    index = np.array([0, 0, 2, 9])
    assert x.at[index].apply(lambda v: 2 * v + 1).tolist() == [3, 1, 5, 3, 4]
    assert x.at[1:3].apply(lambda v: -v).tolist() == [0, -1, -2, 3, 4]
    assert x.at[3].apply(lambda v: v * v).tolist() == [0, 1, 2, 9, 4]
    result = sw.jit(lambda x, i: x.at[i].apply(lambda v: v + 7, unique_indices=True))(x, np.array([4, 9]))
    assert result.tolist() == [0, 1, 2, 3, 11]
    np.testing.assert_array_equal(sw.grad(lambda x: x.at[index[1:]].apply(jnp.square).sum())(x), [0, 1, 4, 1, 1])
    assert sw.jit(lambda x, i: x.at[i].apply(lambda v: 2 * v + 1))(x, index).tolist() == [3, 1, 5, 3, 4]
    # Concrete indices are counted in arrays and under jit, also if several arrays index an element.
    assert x.at[jnp.asarray(index)].apply(lambda v: 2 * v + 1).tolist() == [3, 1, 5, 3, 4]
    assert sw.jit(lambda x: x.at[index].apply(lambda v: 2 * v + 1))(x).tolist() == [3, 1, 5, 3, 4]
    assert x.at[index].apply(lambda v: v + 1, mode="clip").tolist() == [2, 1, 3, 3, 5]
    assert x.at[-index].apply(lambda v: v + 1, wrap_negative_indices=False).tolist() == [2, 1, 2, 3, 4]
    table = jnp.zeros((3, 4), np.int32)
    result = table.at[np.array([0, -1, 2, 2]), 1:3, np.newaxis].apply(lambda v: v + 1)
    assert result.tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 3, 3, 0]]
    result = table.at[np.array([[0], [-1]]), np.array([1, 1, -3, 8])].apply(lambda v: v + 1)
    assert result.tolist() == [[0, 3, 0, 0], [0, 0, 0, 0], [0, 3, 0, 0]]


def test_negative_indices_without_wrapping_are_out_of_bounds():
    x, index = jnp.arange(5), np.array([-1, 1])
    for indices in (index, jnp.asarray(index)):
        assert x.at[indices].get(mode="fill", fill_value=9, wrap_negative_indices=False).tolist() == [9, 1]
        assert x.at[indices].get(wrap_negative_indices=False).tolist() == [0, 1]
        assert x.at[indices].set(7, wrap_negative_indices=False).tolist() == [0, 7, 2, 3, 4]
        assert x.at[indices].add(7, mode="clip", wrap_negative_indices=False).tolist() == [7, 8, 2, 3, 4]
        assert x.at[indices].power(3, wrap_negative_indices=False).tolist() == [0, 1, 2, 3, 4]
    assert x.at[-1].max(7, wrap_negative_indices=False).tolist() == [0, 1, 2, 3, 4]
    assert x.at[-1:].min(0, wrap_negative_indices=False).tolist() == [0, 1, 2, 3, 0]  # slices always wrap
    assert int(x.at[-1].get(mode="fill", fill_value=9, wrap_negative_indices=False)) == 9


def test_updates_of_empty_arrays_do_nothing():
    x = jnp.zeros((0, 3))
    for result in (x.at[np.array([0, 1])].set(1), sw.jit(lambda x, i: x.at[i].add(1.0))(x, np.array([0]))):
        assert result.shape == (0, 3)
    with pytest.raises(IndexError, match=r"dim 0 of f32\[0,3\] is empty and cannot be indexed by integers"):
        x.at[np.array([0])].get()


@pytest.mark.parametrize(
    ("x", "updates", "expected"),
    [
        (np.zeros(2, np.float32), 2, np.float32),
        (np.zeros(2, np.int8), 3, np.int8),
        (np.zeros(2, np.float32), np.ones(2, np.int32), np.float32),
        (np.zeros(2, np.complex64), 1.5, np.complex64),
        (np.zeros(2, np.int32), True, np.int32),
    ],
    ids=str,
)
def test_updates_keep_the_dtype(x, updates, expected):
    assert jnp.asarray(x).at[:].add(updates).dtype == expected


def test_values_of_a_wider_dtype_are_cast_with_a_warning():
    x = jnp.arange(3) - 2
    with pytest.warns(FutureWarning, match=r"at.add: values of f32\[\]~ are cast to the narrower i32\[3\]"):
        result = x.at[0].add(1.5)
    assert result.dtype == np.int32
    assert result.tolist() == [0, -1, 0]  # -2 + 1.5, converted to an integer


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: x.at[0].set(np.ones((2, 3))),
            ValueError,
            "at.set: values of f32[2,3] do not broadcast to (3,), the shape of the indexed elements",
        ),
        (
            lambda x: x.at[0].add(1, mode="bogus"),
            ValueError,
            "at.add: unknown mode 'bogus'; supported: clip, fill, drop, promise_in_bounds",
        ),
        (lambda x: x.at[1.5].set(1), TypeError, None),
        (lambda x: x.at[0].set("1"), TypeError, "at.set: needs an array or a number, not '1' of type str"),
        (lambda x: (x * 1j).at[np.array([0])].max(1j), TypeError, "scatter: complex numbers have no max: c64[4,3]"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call(jnp.zeros((4, 3)))
    assert message is None or str(caught.value) == message


@pytest.mark.parametrize("method", ["set", "add", "subtract", "multiply", "min", "max", "divide", "power"])
@pytest.mark.parametrize("sequence", [[2.0, 0.5, 3.0], (2, 0, 3), [jnp.float32(2), 0.5, 3]], ids=str)
def test_lists_and_tuples_of_values(method, sequence):
    x = jnp.arange(1.0, 13.0).reshape(4, 3)
    expected = getattr(x.at[1:3], method)(np.array(sequence, np.float32))
    np.testing.assert_array_equal(getattr(x.at[1:3], method)(sequence), expected)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", None, "data"), P(("data", "model"))], ids=str)
def test_on_a_mesh(mesh, spec):
    """Sharded evenly and unevenly, along indexed dims and others."""
    x = example() / 8 + 1
    indices = [*INDICES[::3], *ARRAYS[::2], *OUT_OF_BOUNDS]

    def update(x):
        return [
            getattr(x.at[index], method)(values(x[index].shape, index))
            for index in indices
            for method in ("set", "add", "max")
        ]

    expected = sw.jit(update)(x)
    result = sw.jit(update)(sw.device_put(x, NamedSharding(mesh, spec)))
    for actual, array in zip(result, expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=1e-6)
