"""Keys as arrays of a dtype of their own: what they can do, and what they cannot."""

import copy
import pickle

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, random
from shardwise.compiler.ops.elementwise import Convert


def words(keys):
    return np.asarray(random.key_data(keys))


def test_a_key_has_a_dtype_of_its_own():
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


def test_both_forms_give_the_same():
    old, new = random.PRNGKey(3), random.key(3)
    assert random.key_data(old) is old
    np.testing.assert_array_equal(words(new), old)
    assert bool(random.wrap_key_data(old) == new)
    np.testing.assert_array_equal(words(random.split(new, 3)), random.split(old, 3))
    np.testing.assert_array_equal(words(random.fold_in(new, 3)), random.fold_in(old, 3))
    np.testing.assert_array_equal(random.uniform(new, (3,)), random.uniform(old, (3,)))
    assert bool(random.clone(new) == new)


def test_moved_as_others_are():
    """Every way to move elements moves keys as it moves a number for each: here by their second words."""
    keys = random.split(random.key(0), 6)
    number = words(keys)[:, 1]
    which = np.array([True, False, True, False, False, True])
    places = np.array([4, 0, 5])

    def moves(x):
        return [
            x[2],
            x[-1:0:-2],
            x[places],
            x[which.nonzero()],
            x.reshape(2, 3),
            x.reshape(2, 3).T,
            jnp.stack([x, x], 1),
            jnp.concatenate([x[:2], x]),
            jnp.where(which, x, x[0]),
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

    for found, wanted in zip(sw.jit(moves)(keys), sw.jit(moves)(number), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == keys.dtype
        np.testing.assert_array_equal(words(found)[..., 1], wanted)


def test_outside_jit():
    keys = random.split(random.key(1), 3)
    assert [words(one).tolist() for one in keys] == words(keys).tolist()
    np.testing.assert_array_equal(keys == keys[1], [False, True, False])
    np.testing.assert_array_equal(keys != keys[1], [True, False, True])
    for copied in (pickle.loads(pickle.dumps(keys)), copy.deepcopy(keys), sw.device_put(keys, sw.devices()[2])):
        np.testing.assert_array_equal(words(copied), words(keys))
        assert copied.dtype == keys.dtype


def test_between_layouts(mesh):
    keys = random.split(random.key(1), 6).reshape(3, 2)
    placed = keys
    for spec in (("data", "model"), (None, "data"), (("model", "data"),), ()):
        where = sw.NamedSharding(mesh, sw.P(*spec))
        placed = sw.device_put(placed, where)
        assert placed.sharding == where
        np.testing.assert_array_equal(words(placed), words(keys))
        found = sw.jit(lambda x: x.T, in_shardings=where, out_shardings=where)(keys)
        assert found.sharding == where
        np.testing.assert_array_equal(words(found), words(keys.T))


def test_in_transformed_functions():
    key = random.key(2)
    drawn = np.asarray(random.normal(key, (3,)))
    slope = sw.grad(lambda x, key: (x * random.normal(key, (3,))).sum())(2.0, key)
    np.testing.assert_allclose(slope, drawn.sum(), rtol=1e-6)
    _, pull = sw.vjp(lambda x: x * random.normal(key, (3,)), 2.0)
    np.testing.assert_allclose(pull(jnp.ones(3))[0], drawn.sum(), rtol=1e-6)
    last = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, random.fold_in(c[1], c[0])), (0, key))[1]
    wanted = key
    for number in range(3):
        wanted = random.fold_in(wanted, number)
    np.testing.assert_array_equal(words(last), words(wanted))
    program = sw.make_jaxpr(random.split)(key)
    assert "key<fry>[]" in str(program) and "wrap_key_data" in str(program)


WRONG = {
    "add a number": (lambda k: k + 1, TypeError, r"add: key<fry>\[\] and i32\[\]~ do not go together: keys are no"),
    "add a key": (lambda k: k + k, TypeError, r"add: keys are no numbers, and this is key<fry>\[\]"),
    "negative": (lambda k: -k, TypeError, r"neg: keys are no numbers"),
    "order": (lambda k: k < k, TypeError, "compare: keys are equal or not, and have no order"),
    "astype": (lambda k: k.astype("uint32"), TypeError, "convert: keys are no numbers"),
    "from numbers": (lambda k: Convert(k.dtype)(jnp.ones(2)), TypeError, "cannot become keys; `random.wrap_key_data`"),
    "numpy": (np.asarray, TypeError, "numpy has no arrays of keys"),
    "a batch": (
        lambda k: random.normal(random.split(k)),
        ValueError,
        r"normal: takes a single key.*<fry>\[2\]; use vmap",
    ),
    "no key": (lambda k: random.normal(3.0), TypeError, "normal: a key is made by `random.key` or `random.PRNGKey`"),
    "seed is a key": (random.key, TypeError, r"key: seed should be an integer, not key<fry>\[\]"),
    "seed is an array": (lambda k: random.key(np.arange(3)), TypeError, "key: seed should be a scalar.*use vmap"),
    "seed is a float": (lambda k: random.key(1.5), TypeError, "key: seed should be an integer"),
    "impl": (lambda k: random.key(0, impl="rbg"), ValueError, "one kind of keys, 'threefry2x32'.*'rbg' is not here"),
    "words": (
        lambda k: random.wrap_key_data(np.arange(3)),
        TypeError,
        "wrap_key_data: a key is two words along the last",
    ),
    "shape is an integer": (lambda k: random.uniform(k, 3), TypeError, r"uniform: shape .* a tuple, such as \(3,\)"),
    "negative size": (lambda k: random.uniform(k, (-1,)), ValueError, "uniform: a size cannot be negative"),
    "dtype": (lambda k: random.uniform(k, (3,), "int32"), ValueError, "uniform: dtype should be a float, not int32"),
    "dtype of bits": (lambda k: random.bits(k, (3,), "int32"), ValueError, "bits: dtype should be one of uint8"),
    "broadcast": (lambda k: random.gamma(k, np.ones(2), (3,)), TypeError, "gamma: shapes .* do not broadcast"),
    "shape": (lambda k: random.gamma(k, np.ones((3, 2)), (2,)), ValueError, r"gamma: parameters of shapes \(3, 2\)"),
    "too many": (lambda k: random.choice(k, 3, (4,), replace=False), ValueError, "choice: 4 elements without replac"),
    "chances": (
        lambda k: random.choice(k, 3, p=np.ones(2)),
        ValueError,
        "choice: p should give a chance for each of 3",
    ),
    "mode": (lambda k: random.gumbel(k, mode="best"), ValueError, "gumbel: mode should be one of"),
    "narrow": (lambda k: random.beta(k, np.float32(1), 1.0, dtype="float16"), TypeError, "beta: a parameter of type"),
    "layouts": (
        lambda k: sw.config.update("jax_threefry_partitionable", False),
        NotImplementedError,
        "always True here",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    wrong, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        wrong(random.key(0))


def test_settings_that_a_program_may_make():
    sw.config.update("jax_threefry_partitionable", True)
    sw.config.update("jax_default_prng_impl", "threefry2x32")
