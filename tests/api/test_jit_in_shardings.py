"""Arguments whose sharding differs from `in_shardings`: resharded with a warning, or an error by a setting."""

import warnings

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingError
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.fixture
def rows(mesh):
    return NamedSharding(mesh, P("data"))


@pytest.fixture
def columns(mesh):
    return NamedSharding(mesh, P(None, "data"))


X = np.arange(64, dtype=np.float32).reshape(8, 8)


def double(w, x):
    return w + 2 * x


def test_resharded_argument_warns_with_bytes_and_the_fix(rows, columns):
    step = sw.jit(double, in_shardings=(rows, rows))
    line = test_resharded_argument_warns_with_bytes_and_the_fix.__code__.co_firstlineno + 1
    args = sw.device_put(X, rows), sw.device_put(X, columns)
    with pytest.warns(UserWarning, match="in_shardings") as caught:
        result = step(*args)
    np.testing.assert_array_equal(result, 3 * X)
    assert len(caught) == 1 and caught[0].filename == __file__
    text = str(caught[0].message)
    assert text == (
        f"argument `x` of `double`, f32[8,8], has {columns}, but in_shardings of jit at "
        f"test_jit_in_shardings.py:{line} has {rows}: every call reshards it, and each device sends 48 bytes for "
        "that.\n"
        f"  Put it there once, with `device_put(…, {rows})`, or change in_shardings; None keeps the sharding of an "
        "argument."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*args)  # once per argument
        sw.jit(double, in_shardings=(rows, None))(*args)


def test_no_warning_for_equal_or_uncommitted_arguments(mesh, rows):
    step = sw.jit(double, in_shardings=rows)
    step(sw.device_put(X, NamedSharding(mesh, P("data", None))), X)
    step(jnp.asarray(X), 1.0 + jnp.zeros((8, 8)))
    sw.pmap(lambda x: x)(sw.device_put(X, NamedSharding(sw.make_mesh((8,), ("i",)), P(None, "i"))))


def test_setting_raises_or_allows(rows, columns):
    step = sw.jit(double, in_shardings=(rows, rows))
    args = sw.device_put(X, rows), sw.device_put(X, columns)
    with sw.config.override("in_shardings_mismatch", "raise"):
        for _ in range(2):
            with pytest.raises(ShardingError, match=r"argument `x` of `double`, f32\[8,8\], has .*\n.*device_put"):
                step(*args)
        with pytest.raises(ShardingError, match="in_shardings_mismatch is 'raise'"):
            step.lower(*args)
    with sw.config.override("in_shardings_mismatch", "allow"):
        np.testing.assert_array_equal(step(*args), 3 * X)
    with pytest.raises(ValueError, match="must be one of 'warn', 'allow', 'raise'"):
        sw.config.update("in_shardings_mismatch", "error")


@pytest.mark.parametrize("options", [{"in_shardings": "x"}, {"out_shardings": ({"a": 3}, None)}])
def test_values_that_are_no_shardings_raise_when_the_function_is_wrapped(options):
    with pytest.raises(TypeError, match="_shardings must hold shardings, such as NamedSharding"):
        sw.jit(lambda x: x, **options)


def test_in_shardings_need_no_more_memory_than_the_same_shardings_of_arguments():
    """An argument whose replicated dim is padded, since others are sharded unevenly, is padded where it is used."""
    mesh = AbstractMesh((6,), ("data",))

    def step(weights, mean, x):
        def loss(weights):
            h = jnp.tanh(x @ weights["first"])
            return jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, weights["others"])[0] ** 2)

        mean = sw.tree.map(lambda m, g: 0.9 * m + g, mean, sw.grad(loss)(weights))
        return sw.tree.map(lambda w, m: w - 0.1 * m, weights, mean), mean

    def on(shape, *spec):
        return sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))

    weights = {"first": on((64, 100), None, "data"), "others": on((4, 100, 100), None, "data")}
    args = weights, weights, on((120, 64), "data")
    shardings = sw.tree.map(lambda leaf: leaf.sharding, args)
    plain, pinned = (
        sw.simulate(sw.jit(step, donate_argnums=(0, 1), **options), hardware="h100")(*args)
        for options in ({}, {"in_shardings": shardings})
    )
    assert pinned.peak_bytes == plain.peak_bytes
