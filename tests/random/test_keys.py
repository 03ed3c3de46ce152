"""PRNG keys as arrays with a key dtype: supported operations, and errors."""

import copy
import pickle

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, random
from shardwise.api.transformations.derivative_rules import SymbolicZero
from shardwise.compiler.ops.elementwise.convert import Convert


def words(keys):
    return np.asarray(random.key_data(keys))


def test_keys_have_a_key_dtype():
    key = random.key(7)
    assert (key.shape, str(key.dtype), key.size, key.ndim) == ((), "key<fry>", 1, 0)
    assert jnp.issubdtype(key.dtype, sw.dtypes.prng_key)
    assert jnp.issubdtype(key.dtype, sw.dtypes.extended)
    assert not jnp.issubdtype(key.dtype, np.unsignedinteger)
    assert not jnp.issubdtype(np.uint32, sw.dtypes.prng_key)
    assert isinstance(key, sw.Array)
    assert key.dtype == random.key_dtype() == random.key_dtype("threefry2x32")
    assert random.key_impl(key) == "threefry2x32"
    assert repr(key) == "Array((), dtype=key<fry>) overlaying:\n[0 7]"
    assert sw.eval_shape(random.split, key).dtype == key.dtype


def test_raw_keys_and_typed_keys_give_equal_results():
    raw, typed = random.PRNGKey(3), random.key(3)
    assert random.key_data(raw) is raw
    np.testing.assert_array_equal(words(typed), raw)
    assert bool(random.wrap_key_data(raw) == typed)
    np.testing.assert_array_equal(words(random.split(typed, 3)), random.split(raw, 3))
    np.testing.assert_array_equal(words(random.fold_in(typed, 3)), random.fold_in(raw, 3))
    np.testing.assert_array_equal(random.uniform(typed, (3,)), random.uniform(raw, (3,)))
    assert bool(random.clone(typed) == typed)


def test_data_movement_works_on_keys():
    """Indexing, reshaping and control flow move keys as they move the keys' second words."""
    keys = random.split(random.key(0), 6)
    second_words = words(keys)[:, 1]
    mask = np.array([True, False, True, False, False, True])
    indices = np.array([4, 0, 5])

    def moves(x):
        return [
            x[2],
            x[-1:0:-2],
            x[indices],
            x[mask.nonzero()],
            x.reshape(2, 3),
            x.reshape(2, 3).T,
            jnp.stack([x, x], 1),
            jnp.concatenate([x[:2], x]),
            jnp.where(mask, x, x[0]),
            jnp.broadcast_to(x[1], (2, 3)),
            jnp.flip(x),
            x.at[1].set(x[0]),
            lax.dynamic_slice(x, (1,), (3,)),
            lax.dynamic_update_slice(x, x[:2], (3,)),
            lax.cond(True, lambda x: x, lambda x: x[::-1], x),
            lax.scan(lambda carry, one: (one, carry), x[0], x)[1],
            sw.vmap(lambda one: jnp.stack([one, one]), out_axes=1)(x),
            sw.vmap(lambda one: one, in_axes=-1, out_axes=-1)(x.reshape(2, 3)),
        ]

    for moved, expected in zip(sw.jit(moves)(keys), sw.jit(moves)(second_words), strict=True):
        assert moved.shape == expected.shape
        assert moved.dtype == keys.dtype
        np.testing.assert_array_equal(words(moved)[..., 1], expected)


def test_keys_outside_jit():
    keys = random.split(random.key(1), 3)
    assert [words(one).tolist() for one in keys] == words(keys).tolist()
    np.testing.assert_array_equal(keys == keys[1], [False, True, False])
    np.testing.assert_array_equal(keys != keys[1], [True, False, True])
    for copied in (pickle.loads(pickle.dumps(keys)), copy.deepcopy(keys), sw.device_put(keys, sw.devices()[2])):
        np.testing.assert_array_equal(words(copied), words(keys))
        assert copied.dtype == keys.dtype


def test_keys_are_resharded(mesh):
    keys = random.split(random.key(1), 6).reshape(3, 2)
    placed = keys
    for spec in (("data", "model"), (None, "data"), (("model", "data"),), ()):
        sharding = sw.NamedSharding(mesh, sw.P(*spec))
        placed = sw.device_put(placed, sharding)
        assert placed.sharding == sharding
        np.testing.assert_array_equal(words(placed), words(keys))
        transposed = sw.jit(lambda x: x.T, in_shardings=sharding, out_shardings=sharding)(keys)
        assert transposed.sharding == sharding
        np.testing.assert_array_equal(words(transposed), words(keys.T))


def test_keys_in_transformed_functions():
    key = random.key(2)
    samples = np.asarray(random.normal(key, (3,)))
    gradient = sw.grad(lambda x, key: (x * random.normal(key, (3,))).sum())(2.0, key)
    np.testing.assert_allclose(gradient, samples.sum(), rtol=1e-6)
    _, vjp = sw.vjp(lambda x: x * random.normal(key, (3,)), 2.0)
    np.testing.assert_allclose(vjp(jnp.ones(3))[0], samples.sum(), rtol=1e-6)
    last = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, random.fold_in(c[1], c[0])), (0, key))[1]
    expected = key
    for index in range(3):
        expected = random.fold_in(expected, index)
    np.testing.assert_array_equal(words(last), words(expected))
    program = sw.make_jaxpr(random.split)(key)
    assert "key<fry>[]" in str(program) and "wrap_key_data" in str(program)


ERRORS = {
    "add a number": (
        lambda k: k + 1,
        TypeError,
        r"add: key<fry>\[\] and i32\[\]~ cannot be combined: PRNG keys are not numbers",
    ),
    "add a key": (lambda k: k + k, TypeError, r"add: PRNG keys are not numbers, and an operand is key<fry>\[\]"),
    "negative": (lambda k: -k, TypeError, r"neg: PRNG keys are not numbers"),
    "order": (lambda k: k < k, TypeError, "compare: PRNG keys can be compared with EQ and NE only, not LT"),
    "astype": (lambda k: k.astype("uint32"), TypeError, "convert: PRNG keys are not numbers"),
    "from numbers": (
        lambda k: Convert(k.dtype)(jnp.ones(2)),
        TypeError,
        "cannot be converted to PRNG keys; use `random.wrap_key_data`",
    ),
    "numpy": (np.asarray, TypeError, "numpy has no arrays of keys"),
    "a batch": (
        lambda k: random.normal(random.split(k)),
        ValueError,
        r"normal: accepts a single key.*<fry>\[2\]; use vmap",
    ),
    "no key": (
        lambda k: random.normal(3.0),
        TypeError,
        "normal: key must be a PRNG key, as `random.key` or `random.PRNGKey` returns",
    ),
    "seed is a key": (random.key, TypeError, r"key: seed must be an integer, not key<fry>\[\]"),
    "seed is an array": (lambda k: random.key(np.arange(3)), TypeError, "key: seed must be a scalar.*use vmap"),
    "seed is a float": (lambda k: random.key(1.5), TypeError, "key: seed must be an integer"),
    "impl": (
        lambda k: random.key(0, impl="mersenne"),
        ValueError,
        "PRNG implementation 'mersenne' is not supported; supported: 'threefry2x32', 'rbg', 'unsafe_rbg'",
    ),
    "words": (
        lambda k: random.wrap_key_data(np.arange(3)),
        TypeError,
        "wrap_key_data: a key of threefry2x32 is 2 words along the last",
    ),
    "shape is a float": (
        lambda k: random.uniform(k, 3.0),
        TypeError,
        r"uniform: shape must be a tuple of integers, not 3\.0",
    ),
    "negative size": (lambda k: random.uniform(k, (-1,)), ValueError, "uniform: sizes must not be negative"),
    "dtype": (
        lambda k: random.uniform(k, (3,), "int32"),
        ValueError,
        "uniform: dtype must be a floating-point dtype, not int32",
    ),
    "dtype of bits": (lambda k: random.bits(k, (3,), "int32"), ValueError, "bits: dtype must be one of uint8"),
    "broadcast": (lambda k: random.gamma(k, np.ones(2), (3,)), TypeError, "gamma: shapes .* do not broadcast"),
    "shape": (lambda k: random.gamma(k, np.ones((3, 2)), (2,)), ValueError, r"gamma: parameters of shapes \(3, 2\)"),
    "too many": (
        lambda k: random.choice(k, 3, (4,), replace=False),
        ValueError,
        "choice: cannot sample 4 of 3 elements without replac",
    ),
    "chances": (
        lambda k: random.choice(k, 3, p=np.ones(2)),
        ValueError,
        "choice: p must have one probability for each of the 3",
    ),
    "mode": (lambda k: random.gumbel(k, mode="best"), ValueError, "gumbel: mode must be one of"),
    "narrow": (lambda k: random.beta(k, np.float32(1), 1.0, dtype="float16"), TypeError, "beta: a parameter of type"),
    "layouts": (
        lambda k: sw.config.update("jax_threefry_partitionable", False),
        NotImplementedError,
        "config 'threefry_partitionable' must be True, not False",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, text = ERRORS[name]
    with pytest.raises(error, match=text):
        call(random.key(0))


def test_config_accepts_the_supported_prng_settings():
    sw.config.update("jax_threefry_partitionable", True)
    sw.config.update("jax_default_prng_impl", "threefry2x32")


def test_copies_of_keys():
    for impl in ("threefry2x32", "rbg"):
        keys = random.split(random.key(3, impl=impl), 2)
        for copied in (jnp.array(keys), jnp.copy(keys), keys.copy(), sw.jit(lambda k: k.copy())(keys)):
            assert copied is not keys and copied.dtype == keys.dtype
            np.testing.assert_array_equal(words(copied), words(keys))


def test_array_of_keys_from_callback(mesh):
    sharding = sw.NamedSharding(mesh, sw.P("data"))
    expected = sw.vmap(random.key)(jnp.arange(8))
    keys = sw.make_array_from_callback((8,), sharding, lambda index: expected[index])
    assert keys.sharding == sharding and keys.dtype == expected.dtype
    np.testing.assert_array_equal(words(keys), words(expected))


@pytest.mark.parametrize("symbolic", [False, True])
def test_custom_vjp_of_a_function_of_keys(symbolic):
    """The cotangent of a key is a float0 array, or a SymbolicZero."""
    seen = []

    @sw.custom_vjp
    def second(_, state):
        return state

    def forward(_, state):
        return sw.tree.map(lambda x: x.value, state) if symbolic else state, None

    def backward(_, cotangents):
        seen.append(cotangents[1])
        return cotangents[0], cotangents

    second.defvjp(forward, backward, symbolic_zeros=symbolic)
    state = (8.0, random.key(123))
    assert float(sw.grad(lambda x: second(x, state)[0])(3.0)) == 1
    assert seen[0].dtype == sw.dtypes.float0
    assert isinstance(seen[0], SymbolicZero if symbolic else np.ndarray)


def test_seed_offset():
    with sw.config.override("random_seed_offset", 3):
        np.testing.assert_array_equal(random.PRNGKey(5), [0, 8])
        np.testing.assert_array_equal(words(sw.jit(random.key)(5)), [0, 8])
    np.testing.assert_array_equal(random.PRNGKey(5), [0, 5])


def test_implementation_must_be_a_name():
    with pytest.raises(TypeError, match="unrecognized type int of a PRNG implementation: pass its name"):
        random.key(0, impl=3)


def test_keys_are_close_if_they_are_equal():
    keys = random.split(random.key(0), 3)
    assert jnp.isclose(keys, keys[1]).tolist() == [False, True, False]
    assert jnp.allclose(keys, keys.copy()) and not jnp.allclose(keys, keys[::-1])
    assert sw.jit(jnp.allclose)(keys, keys)
    with pytest.raises(TypeError):
        jnp.allclose(keys, np.zeros(3))


def test_keys_have_a_notebook_view():
    keys = random.split(random.key(0), 3)
    page = keys._repr_html_()
    assert "key&lt;fry&gt;" in page and str(words(keys)[0, 0]) in page


def test_key_is_a_type_for_annotations():
    key = sw.random.key(0)
    assert sw.random.Key(key) is key and sw.random.Key.__supertype__ is sw.Array
