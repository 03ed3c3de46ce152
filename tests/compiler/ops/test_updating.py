"""`x.at[...]`: values, dtypes and derivatives like JAX; on a mesh like one device; what it refuses."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.compiler.ops.test_indexing import ARRAYS, INDICES, OUTSIDE, at, example, joined, split

WAYS = ("set", "add", "subtract", "multiply", "divide", "power", "min", "max")
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
    """None of them equal to an element: the derivative of a maximum has no kink."""
    rng = np.random.default_rng(len(str(index)))
    return (rng.permutation(int(np.prod(shape))).reshape(shape) / 2 + 0.75).astype(np.float32)


def reference(x, index, how, given):
    """By numpy, where all places are inside."""
    ufuncs = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
    ufuncs |= {"power": np.power, "min": np.minimum, "max": np.maximum}
    found = x.copy()
    if how == "set":
        found[index] = given
    else:
        ufuncs[how].at(found, index, given)
    return found


@pytest.mark.parametrize("index", [*INDICES[::2], *ARRAYS], ids=str)
def test_like_numpy(index):
    x = example() / 8 + 1
    shape = x[index].shape
    many = [1.5, values(shape, index), values(shape[-1:], index)]
    repeats = np.any(reference(np.zeros_like(x), index, "add", 1) > 1)
    ways = [how for how in WAYS if not (repeats and how in ("divide", "power"))]  # there, rounds otherwise
    found = sw.jit(lambda x: [getattr(x.at[index], how)(given) for how in ways for given in many])(x)
    with np.errstate(over="ignore"):
        expected = [reference(x, index, how, given) for how in ways for given in many]
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.jax
@pytest.mark.parametrize("index", [*UNIQUE, *ARRAYS[:4], ARRAYS[21], *OUTSIDE], ids=str)
def test_like_jax(index):
    """Outside too, and with indices of the program."""
    jax = pytest.importorskip("jax")
    x = example() / 8 + 1
    entries, numbers = split(index)
    given = values(np.asarray(jax.numpy.asarray(x)[index]).shape, index)

    def update(x, numbers, given):
        places = x.at[joined(entries, numbers)]
        updates = [getattr(places, how)(given, mode=mode) for how in WAYS for mode in (None, "drop", "clip")]
        taken = [places.get(mode=mode) for mode in (None, "fill", "clip", "drop")]
        return [*updates, *taken, places.get(mode="fill", fill_value=7)]

    expected = jax.jit(update)(x, numbers, given)
    here = [jnp.asarray(x).at[index].set(given), jnp.asarray(x).at[index].add(given)]
    for found in (sw.jit(update)(x, numbers, given), sw.jit(lambda x, given: update(x, numbers, given))(x, given)):
        for got, want in zip(found, expected, strict=True):
            assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)
            np.testing.assert_allclose(got, want, rtol=1e-5)
    for got, want in zip(here, (expected[0], expected[3]), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.jax
@pytest.mark.parametrize("index", UNIQUE, ids=str)
def test_gradients_like_jax(index):
    jax = pytest.importorskip("jax")
    x = example() / 8 + 1
    given = values(np.asarray(jax.numpy.asarray(x)[index]).shape, index)
    weights = np.cos(np.arange(60.0)).reshape(5, 4, 3).astype(np.float32)

    def loss(how):
        return lambda x, given: (getattr(x.at[index], how)(given, unique_indices=True) * weights).sum()

    def gradients(library):
        return library.jit(lambda x, given: [library.grad(loss(how), (0, 1))(x, given) for how in WAYS])(x, given)

    for found, expected in zip(gradients(sw), gradients(jax), strict=True):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["set", "add", "multiply", "divide", "power", "min", "max"])
def test_gradients_where_places_repeat(how, monkeypatch):
    """By finite differences, in f64: JAX has none for products."""
    x = np.array([0.5, 1.5, 2.5, 3.5])
    index = np.array([1, 3, 1, 9, -4, 1])
    given = np.array([1.25, 0.75, 2.25, 9.0, 0.6, 1.75])
    weights = np.array([1.0, -2.0, 3.0, 0.5])

    def loss(x, given):
        return (getattr(x.at[index], how)(given) * weights).sum()

    monkeypatch.setattr(sw.config, "enable_x64", True)
    found = sw.grad(loss, (0, 1))(x, given)
    run = sw.jit(loss)
    for number, (gradient, arg) in enumerate(zip(found, (x, given), strict=True)):
        for place in range(arg.size):
            step = np.zeros_like(arg)
            step[place] = 1e-6
            ahead, behind = (
                run(*(a + sign * step if n == number else a for n, a in enumerate((x, given)))) for sign in (1, -1)
            )
            slope = (float(ahead) - float(behind)) / 2e-6
            np.testing.assert_allclose(np.asarray(gradient)[place], slope, rtol=1e-6, atol=1e-7)


def test_gradients_of_products_with_zeros():
    given = np.array([0.0, 2.0, 0.0, 5.0], np.float32)
    index = np.array([0, 0, 1, 1])
    x = np.array([3.0, 7.0], np.float32)
    to_x, to_given = sw.grad(lambda x, v: x.at[index].multiply(v).sum(), (0, 1))(x, given)
    np.testing.assert_array_equal(to_x, [0, 0])
    np.testing.assert_array_equal(to_given, [6, 0, 35, 0])


@pytest.mark.parametrize("how", WAYS)
def test_vmap_is_a_loop(how):
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2) + 1
    index = np.array([[0, 3], [1, 1], [-1, 9]])
    given = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 2, 2)

    def one(x, index, given):
        return getattr(jnp.asarray(x).at[index], how)(given)

    for dims in ((0, 0, 0), (None, 0, None), (0, None, 0)):
        args = [arg if dim == 0 else arg[0] for arg, dim in zip((x, index, given), dims, strict=True)]
        found = sw.vmap(one, dims)(*args)
        for number, row in enumerate(found):
            each = [arg[number] if dim == 0 else arg for arg, dim in zip(args, dims, strict=True)]
            np.testing.assert_array_equal(row, one(*each))


def test_apply():
    x = jnp.arange(5.0)
    index = np.array([0, 0, 2, 9])
    assert x.at[index].apply(lambda v: 2 * v + 1).tolist() == [3, 1, 5, 3, 4]
    assert x.at[1:3].apply(lambda v: -v).tolist() == [0, -1, -2, 3, 4]
    assert x.at[3].apply(lambda v: v * v).tolist() == [0, 1, 2, 9, 4]
    found = sw.jit(lambda x, i: x.at[i].apply(lambda v: v + 7, unique_indices=True))(x, np.array([4, 9]))
    assert found.tolist() == [0, 1, 2, 3, 11]
    np.testing.assert_array_equal(sw.grad(lambda x: x.at[index[1:]].apply(jnp.square).sum())(x), [0, 1, 4, 1, 1])
    with pytest.raises(NotImplementedError, match="pass `unique_indices=True` if none repeats"):
        sw.jit(lambda x, i: x.at[i].apply(jnp.square))(x, index)
    # Known indices are counted wherever they are; two columns say one place.
    assert x.at[jnp.asarray(index)].apply(lambda v: 2 * v + 1).tolist() == [3, 1, 5, 3, 4]
    assert sw.jit(lambda x: x.at[index].apply(lambda v: 2 * v + 1))(x).tolist() == [3, 1, 5, 3, 4]
    assert x.at[index].apply(lambda v: v + 1, mode="clip").tolist() == [2, 1, 3, 3, 5]
    assert x.at[-index].apply(lambda v: v + 1, wrap_negative_indices=False).tolist() == [2, 1, 2, 3, 4]
    table = jnp.zeros((3, 4), np.int32)
    found = table.at[np.array([0, -1, 2, 2]), 1:3, np.newaxis].apply(lambda v: v + 1)
    assert found.tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 3, 3, 0]]
    found = table.at[np.array([[0], [-1]]), np.array([1, 1, -3, 8])].apply(lambda v: v + 1)
    assert found.tolist() == [[0, 3, 0, 0], [0, 0, 0, 0], [0, 3, 0, 0]]


def test_negative_indices_may_lie_outside():
    x, index = jnp.arange(5), np.array([-1, 1])
    for places in (index, jnp.asarray(index)):
        assert x.at[places].get(mode="fill", fill_value=9, wrap_negative_indices=False).tolist() == [9, 1]
        assert x.at[places].get(wrap_negative_indices=False).tolist() == [0, 1]
        assert x.at[places].set(7, wrap_negative_indices=False).tolist() == [0, 7, 2, 3, 4]
        assert x.at[places].add(7, mode="clip", wrap_negative_indices=False).tolist() == [7, 8, 2, 3, 4]
        assert x.at[places].power(3, wrap_negative_indices=False).tolist() == [0, 1, 2, 3, 4]
    assert x.at[-1].max(7, wrap_negative_indices=False).tolist() == [0, 1, 2, 3, 4]
    assert x.at[-1:].min(0, wrap_negative_indices=False).tolist() == [0, 1, 2, 3, 0]  # slices always do
    assert int(x.at[-1].get(mode="fill", fill_value=9, wrap_negative_indices=False)) == 9


def test_nothing_is_updated_where_there_is_nothing():
    x = jnp.zeros((0, 3))
    for found in (x.at[np.array([0, 1])].set(1), sw.jit(lambda x, i: x.at[i].add(1.0))(x, np.array([0]))):
        assert found.shape == (0, 3)
    with pytest.raises(IndexError, match=r"dim 0 of f32\[0,3\] is empty and cannot be indexed by integers"):
        x.at[np.array([0])].get()


@pytest.mark.parametrize(
    ("x", "given", "expected"),
    [
        (np.zeros(2, np.float32), 2, np.float32),
        (np.zeros(2, np.int8), 3, np.int8),
        (np.zeros(2, np.float32), np.ones(2, np.int32), np.float32),
        (np.zeros(2, np.complex64), 1.5, np.complex64),
        (np.zeros(2, np.int32), True, np.int32),
    ],
    ids=str,
)
def test_the_array_keeps_its_dtype(x, given, expected):
    assert jnp.asarray(x).at[:].add(given).dtype == expected


def test_values_that_do_not_fit_are_converted_with_a_warning():
    x = jnp.arange(3) - 2
    with pytest.warns(FutureWarning, match=r"at.add: values of f32\[\]~ are cast to the narrower i32\[3\]"):
        found = x.at[0].add(1.5)
    assert found.dtype == np.int32
    assert found.tolist() == [0, -1, 0]  # -2 + 1.5, and then an integer


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
        (lambda x: x.at[0].set([1, 2, 3]), TypeError, "at.set: needs an array or a number, not [1, 2, 3] of type list"),
        (lambda x: (x * 1j).at[np.array([0])].max(1j), TypeError, "scatter: complex numbers have no max: c64[4,3]"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call(jnp.zeros((4, 3)))
    assert message is None or str(caught.value) == message


@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", None, "data"), P(("data", "model"))], ids=str)
def test_on_a_mesh(mesh, spec):
    """Cut evenly and unevenly, along the dims that are indexed and along others."""
    x = example() / 8 + 1
    indices = [*INDICES[::3], *ARRAYS[::2], *OUTSIDE]

    def update(x):
        return [
            getattr(x.at[index], how)(values(x[index].shape, index))
            for index in indices
            for how in ("set", "add", "max")
        ]

    expected = sw.jit(update)(x)
    found = sw.jit(update)(sw.device_put(x, NamedSharding(mesh, spec)))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
