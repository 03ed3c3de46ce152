"""pmap: compared with loops over slices; its caches; and its errors."""

import gc
import weakref

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import DeviceMismatchError, ShardingError, UnboundAxisError
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.device_shards import shard_bounds

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)


def test_each_device_has_one_slice():
    twice = sw.pmap(lambda x: x * 2)
    for given in (X, jnp.asarray(X), sw.device_put(X, NamedSharding(sw.make_mesh((4,), ("q",)), P(None)))):
        found = twice(given)
        np.testing.assert_array_equal(found, X * 2)
        assert shard_bounds(found) == {index: ((index, index + 1), (0, 3)) for index in range(4)}
    assert twice(X).sharding == NamedSharding(Mesh(sw.devices()[:4], ("pmap",)), P("pmap"))
    assert len(twice(np.arange(8)).devices()) == 8


def test_axes_as_pytrees():
    def f(p, x, *, scale):
        assert p["w"].shape == (3,) and p["b"].shape == () and x.shape == (2,) and scale.shape == ()
        return {"y": p["w"][:2] * x * scale + p["b"], "n": lax.psum(x.sum(), "i"), "const": 7}

    parameters = {"w": X[0], "b": np.arange(4.0, dtype=np.float32)}
    x, scale = RNG.normal(size=(2, 4)).astype(np.float32), np.array([1, 2, 3, 4], np.float32)
    given = sw.pmap(f, "i", in_axes=({"w": None, "b": 0}, 1), out_axes={"y": 1, "n": None, "const": 0})
    found = given(parameters, x, scale=scale)
    loop = [X[0][:2] * x[:, k] * scale[k] + parameters["b"][k] for k in range(4)]
    np.testing.assert_allclose(found["y"], np.stack(loop, 1), rtol=1e-6)
    np.testing.assert_allclose(found["n"], x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(found["const"], [7, 7, 7, 7])
    assert found["y"].sharding.spec == P(None, "i") and found["n"].is_fully_replicated
    assert shard_bounds(found["const"])[2] == ((2, 3),)


def test_axis_size_without_mapped_arguments():
    found = sw.pmap(lambda x: x + lax.axis_index("i"), "i", in_axes=None, axis_size=3)(np.float32(0.5))
    np.testing.assert_array_equal(found, [0.5, 1.5, 2.5])


def test_unbound_axis_name_becomes_the_axis_name():
    @sw.pmap
    def parallel_fn(x):
        return lax.psum(x, axis_name="i")

    np.testing.assert_allclose(parallel_fn(X), np.tile(X.sum(0), (4, 1)), rtol=1e-5)
    assert parallel_fn(X).sharding.mesh.axis_names == ("i",)

    # A name that an enclosing vmap binds is not taken.
    both = sw.vmap(sw.pmap(lambda x: lax.psum(x, "v") + lax.psum(x, "i")), in_axes=1, axis_name="v")(X)
    np.testing.assert_allclose(both, (X.sum(1)[:, None] + X.sum(0)).T, rtol=1e-5)


def test_repeated_calls_do_not_retrace():
    traced = []

    def f(x, n):
        traced.append(x.type.shape)
        return lax.psum(x, "i") * n

    mapped = sw.pmap(f, "i", static_broadcasted_argnums=1)
    for _ in range(3):
        mapped(X, 2)
        mapped(jnp.asarray(X), 2)
    assert traced == [(3,)]
    sw.pmap(f, axis_name="i", static_broadcasted_argnums=1)(X, 2)  # the same function shares its cache
    assert traced == [(3,)]
    np.testing.assert_allclose(mapped(X, 3)[0], X.sum(0) * 3, rtol=1e-5)
    mapped(X[:2], 3)
    assert traced == [(3,), (3,), (3,)]

    unnamed = sw.pmap(lambda x: traced.append(0) or lax.psum(x, "i"))
    for _ in range(3):
        unnamed(X)
    assert traced[3:] == [0, 0]  # traced again with the name that was found


def test_unreferenced_function_is_freed():
    def f(x):
        return x + 1

    sw.pmap(f)(X)
    left = weakref.ref(f)
    del f
    gc.collect()
    assert left() is None


def test_static_arguments():
    def f(x, how, y):
        return x + y if how == "add" else x * y

    mapped = sw.pmap(f, in_axes=(0, None, 1), static_broadcasted_argnums=(1,))
    np.testing.assert_allclose(mapped(X, "add", X.T), X + X)
    np.testing.assert_allclose(mapped(X, "mul", X.T), X * X)


def test_donation():
    step = sw.pmap(lambda w, x: w + x, donate_argnums=0)
    w, x = sw.pmap(lambda x: x)(X), sw.pmap(lambda x: x * 2)(X)
    where = [shard.data.unsafe_buffer_pointer() for shard in w.addressable_shards]
    found = step(w, x)
    assert w.is_deleted() and not x.is_deleted()
    assert [shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards] == where
    np.testing.assert_allclose(found, X * 3, rtol=1e-6)


def test_devices_are_the_first_or_the_given_ones():
    last = sw.devices()[4:]
    found = sw.pmap(lambda x: x + lax.axis_index("i"), "i", devices=last[::-1])(X)
    np.testing.assert_allclose(found, X + np.arange(4)[:, None], rtol=1e-6)
    assert {number: part[0][0] for number, part in shard_bounds(found).items()} == {7: 0, 6: 1, 5: 2, 4: 3}
    assert sw.pmap(lambda x: x, devices=last, backend="cpu")(X[:2]).devices() == set(last[:2])


def test_slices_on_other_devices_are_moved():
    devices = sw.devices()
    first = sw.pmap(lambda x: x, devices=devices[:4])(X)
    for targets in (devices[3::-1], devices[4:]):
        found = sw.pmap(lambda x: x * 2, devices=targets)(first)
        np.testing.assert_array_equal(found, 2 * X)
        assert [shard.device for shard in found.addressable_shards] == targets


def test_derivatives_inside_are_each_devices_own():
    w = np.float32(2.0)

    def loss(w, x):
        return (jnp.sin(w * x)).sum()

    def inside(w, x):
        own = sw.grad(loss)(w, x)
        return own, lax.pmean(own, "i"), sw.grad(lambda w: lax.psum(loss(w, x), "i"))(w)

    own, mean, of_sum = sw.pmap(inside, "i", in_axes=(None, 0))(w, X)
    slope = (np.cos(w * X) * X).sum(1)
    np.testing.assert_allclose(own, slope, rtol=1e-4)
    np.testing.assert_allclose(mean, np.full(4, slope.mean()), rtol=1e-4)
    np.testing.assert_allclose(of_sum, slope * 4, rtol=1e-4)  # four sums, one per device


def test_inside_other_transformations():
    def f(w, x):
        return lax.pmean(jnp.sin(w * x).sum(), "i") * x

    mapped = sw.pmap(f, "i", in_axes=(None, 0))

    def by_hand(w, x):
        return np.sin(w * x).sum(1).mean() * x

    w, step = 0.7, 1e-4
    np.testing.assert_allclose(sw.jit(lambda w, x: mapped(w, x) + 1)(w, X), by_hand(w, X) + 1, rtol=1e-5)
    x = X.astype(np.float64)
    expected = (by_hand(w + step, x) - by_hand(w - step, x)) / (2 * step)
    np.testing.assert_allclose(sw.grad(lambda w: mapped(w, X).sum())(w), expected.sum(), rtol=1e-4)
    _, tangent = sw.jvp(lambda w: mapped(w, X), (w,), (1.0,))
    np.testing.assert_allclose(tangent, expected, rtol=1e-3, atol=1e-5)
    many = sw.vmap(mapped, in_axes=(0, None))(np.float32([0.1, 0.2]), X)
    np.testing.assert_allclose(many, np.stack([by_hand(v, X) for v in (0.1, 0.2)]), rtol=1e-5)
    assert many.sharding.spec == P(None, "i")


def test_with_disable_jit():
    with sw.disable_jit():
        found = sw.pmap(lambda x, n: x * n - lax.pmax(x, "i"), "i", static_broadcasted_argnums=1)(X, 2)
    np.testing.assert_allclose(found, X * 2 - X.max(0), rtol=1e-6)


def test_keys_are_sliced():
    keys = sw.random.split(sw.random.key(0), 4)

    def draw(key):
        return sw.random.normal(key, (2,)), sw.random.key_data(sw.random.fold_in(key, lax.axis_index("i")))

    for found, expected in zip(sw.pmap(draw, "i")(keys), sw.jit(sw.vmap(draw, axis_name="i"))(keys), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert sw.pmap(lambda key: key)(keys).dtype == keys.dtype


def test_lower_and_plan():
    mapped = sw.pmap(lambda x: lax.psum(x, "i"), "i")
    assert mapped.lower(X).as_text().count("stablehlo.all_reduce") == 1
    assert mapped.eval_shape(X).shape == (4, 3)
    assert "named_sum[axes=('i',)" in str(sw.make_jaxpr(mapped)(X))


# --- errors -----------------------------------------------------------------------------------------------------------


def train_step(w, batch):
    return w * batch


# name: options, arguments, the error and its text
MISFITS = {
    "sizes": ({}, (X, X[:3]), ValueError, r"all mapped axes must have the same size:\n  `w` has 4\n  `batch` has 3"),
    "axis_size": (
        {"axis_size": 3},
        (X, X),
        ValueError,
        r"the same size:\n  `w` has 4\n  `batch` has 4\n  axis_size is 3",
    ),
    "nothing mapped": (
        {"in_axes": None},
        (X, X),
        ValueError,
        "in_axes maps no argument, so the size of the mapped axis is unknown",
    ),
    "more than devices": (
        {},
        (np.ones(9), np.ones(9)),
        ValueError,
        "the mapped axes have size 9, but there are 8 devices, .* Pass",
    ),
    "no slice": ({}, (np.ones(0), np.ones(0)), ValueError, "the mapped axes have size 0, but there are 8 devices"),
    "few devices": ({"devices": sw.devices()[:2]}, (X, X), ValueError, "axes have size 4, but `devices` has 2"),
    "a number": ({}, (2.0, X), ValueError, r"in_axes maps axis 0 of `w`, which is f32\[\]~ and has rank 0"),
    "in axis": (
        {"in_axes": 2},
        (X, X),
        ValueError,
        r"in_axes maps axis 2 of `w`, which is f32\[4,3\] and has rank 2",
    ),
    "out axis": ({"out_axes": 2}, (X, X), ValueError, r"out_axes has axis 2 for result 0, .* f32\[3\] .* 0 to 1"),
    "in_axes": (
        {"in_axes": (0,)},
        (X, X),
        ValueError,
        "in_axes must be a tree prefix of the arguments.\n  in_axes: tuple of length 1 against tuple",
    ),
    "out_axes": (
        {"out_axes": (0, 0)},
        (X, X),
        ValueError,
        "out_axes must be a tree prefix of the results.\n  out_axes: tuple of length 2 against",
    ),
}
WRONG = {
    "in_axes": ({"in_axes": "w"}, TypeError, "in_axes must be an integer, None, or a tuple .* not 'w'"),
    "in from behind": ({"in_axes": -1}, ValueError, "in_axes must hold nonnegative integers and None, not -1"),
    "out_axes": ({"out_axes": "w"}, ValueError, "out_axes must hold nonnegative integers and None, not 'w'"),
    "axis_name": ({"axis_name": 7}, TypeError, "axis_name must be a string, not 7"),
    "axis_size": ({"axis_size": -1}, TypeError, "axis_size must be a nonnegative integer, not -1"),
    "devices": ({"devices": []}, ValueError, "devices is empty; leave it out"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_mismatched_arguments_raise(name):
    options, args, error, text = MISFITS[name]
    with pytest.raises(error, match=r"pmap of `train_step` \(test_pmap.py:\d+\): .*" + text):
        sw.pmap(train_step, **options)(*args)


@pytest.mark.parametrize("name", WRONG)
def test_invalid_options_raise(name):
    options, error, text = WRONG[name]
    with pytest.raises(error, match=r"pmap of `train_step` \(test_pmap.py:\d+\): " + text):
        sw.pmap(train_step, **options)


def test_invalid_static_and_donated_arguments_raise():
    with pytest.raises(TypeError, match=r"argument `w` of `train_step` \(test_pmap.py:\d+\) is 'w' of type str"):
        sw.pmap(train_step)("w", X)
    with pytest.raises(ValueError, match=r"static argument 0 of `train_step` .* is not hashable"):
        sw.pmap(train_step, static_broadcasted_argnums=0)([1], X)
    with pytest.raises(
        ValueError, match=r"static_broadcasted_argnums of `train_step` .* has 5, but the function has 2 positional"
    ):
        sw.pmap(train_step, static_broadcasted_argnums=5)
    with pytest.raises(ValueError, match=r"donate_argnums of `train_step` .* has 2, but the function has 2 positional"):
        sw.pmap(train_step, donate_argnums=2)
    with pytest.raises(
        ValueError, match=r"argument 0 of `train_step` .* is both static and donated: only dynamic arguments"
    ):
        sw.pmap(train_step, static_broadcasted_argnums=0, donate_argnums=0)


def test_non_function_raises():
    with pytest.raises(TypeError, match="pmap needs a function, not 3"):
        sw.pmap(3)


def test_unbound_axis_names_raise():
    with pytest.raises(NameError, match=r"unbound axis name 'j'\. The bound names are: 'i'\."):
        sw.pmap(lambda x: lax.psum(x, "j"), "i")(X)
    text = r"no axis_name is given, but .* axis names 'j' and 'i'\. Pass the one .*, such as pmap\(…, axis_name='j'\)\."
    with pytest.raises(UnboundAxisError, match=text):
        sw.pmap(lambda x: lax.psum(lax.psum(x, "j"), "i"))(X)


def test_nested_pmap_raises():
    text = (
        r"pmap of `<lambda>` .*: pmap cannot be nested in a pmap or shard_map, here with the axes 'i'\.\n"
        r"  Use vmap for the inner dim; or use one shard_map over a mesh with two axes"
    )
    with pytest.raises(ShardingError, match=text):
        sw.pmap(sw.pmap(lambda x: x, "j"), "i")(X)


def test_arrays_committed_to_other_devices_raise():
    with pytest.raises(DeviceMismatchError, match="Move arrays to one mesh or one device with `device_put` first"):
        sw.pmap(lambda x: x)(sw.device_put(X, sw.devices()[5]))
