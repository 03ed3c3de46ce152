"""Donated arguments of inside_jax.jit: errors where XLA would end the process, and no error where JAX has none."""

import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from shardwise import inside_jax  # noqa: E402
from tests.inside_jax.steps import auto_mesh  # noqa: E402

NamedSharding, P = jax.sharding.NamedSharding, jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax

TWICE = r"`update` gets the same array as {} and as {}, and one of them is donated"
VALUES = np.arange(32, dtype=np.float32).reshape(8, 4)


def array():
    return jax.device_put(VALUES, NamedSharding(auto_mesh(), P("data")))


def update(state, batch):
    return {"mean": state["mean"] + batch, "scale": state["scale"] * 2}


def pair(x, y):
    return x * 2, y + 1


def assert_pair(results):
    np.testing.assert_array_equal(results, pair(VALUES, VALUES))


@pytest.mark.parametrize("repeats", [0, 1], ids=["first_call", "later_call"])
def test_an_array_that_is_donated_twice(repeats):
    jitted = inside_jax.jit(update, donate_argnums=0)
    for _ in range(repeats):
        jitted({"mean": array(), "scale": array()}, array())
    x = array()
    with pytest.raises(RuntimeError, match=TWICE.format(r"state\['mean'\]", r"state\['scale'\]")):
        jitted({"mean": x, "scale": x}, array())
    with pytest.raises(RuntimeError, match=TWICE.format(r"state\['mean'\]", "batch")):
        jitted({"mean": x, "scale": array()}, x)
    assert not x.is_deleted()


def test_an_array_that_was_donated_before():
    jitted = inside_jax.jit(update, donate_argnames="state")
    state, batch = {"mean": array(), "scale": array()}, array()
    jitted(state=state, batch=batch)
    message = r"`update`: state\['mean'\] is a float32\[8,4\] whose memory was freed: it was donated"
    with pytest.raises(RuntimeError, match=message):
        jitted(state=state, batch=batch)


def test_arguments_that_are_not_read_may_repeat_or_be_freed():
    jitted = inside_jax.jit(lambda x, unused: x * 2, donate_argnums=0)
    x = array()
    np.testing.assert_array_equal(jitted(x, x), VALUES * 2)
    assert x.is_deleted()
    np.testing.assert_array_equal(jitted(array(), x), VALUES * 2)


def test_an_argument_that_jax_copies_may_repeat():
    columns = NamedSharding(auto_mesh(), P(None, "data"))
    jitted = inside_jax.jit(pair, donate_argnums=(0, 1), in_shardings=columns)
    x = jax.numpy.asarray(VALUES)
    assert_pair(jitted(x, x))


def test_donated_memory_that_no_result_can_reuse_may_repeat():
    jitted = inside_jax.jit(lambda x, y: (x + y).sum(), donate_argnums=0)
    x = array()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        np.testing.assert_array_equal(jitted(x, x), 2 * VALUES.sum())


def test_donation_is_ignored_in_traced_functions():
    sharding = NamedSharding(auto_mesh(), P("data"))
    jitted = inside_jax.jit(pair, donate_argnums=0, in_shardings=sharding)
    x = array()
    assert_pair(jax.jit(lambda x: jitted(x, x))(x))
    np.testing.assert_array_equal(jax.grad(lambda x: jitted(x, x)[0].sum())(x), np.full_like(VALUES, 2))
    assert not x.is_deleted()
