"""Shardings, devices and layouts."""

import numpy as np
import pytest
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.shard_alike import shard_alike

from shardwise.errors import UnsupportedError
from tests.inside_jax.primitives.cases import NamedSharding, P, case, inside_jax, jax, jnp, like_jax, mesh, place

lax = jax.lax

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

CASES = [
    case(
        "sharding_constraint",
        lambda x: lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh(), P("model"))),
        X,
    ),
    case("device_put", lambda x: jax.device_put(x, NamedSharding(mesh(), P("data"))) + 1, X),
    case("shard_alike", lambda x: shard_alike(x, 2 * x)[1], X),
    case("device_put_nowhere", lambda x: jax.device_put(x) + 1, X),
    case("device_put_memory", lambda x: jax.device_put(x, jax.memory.Space.Device) * 2, X),
    case("layout_constraint", lambda x: with_layout_constraint(x, Layout((1, 0))) + 1, X, no_grad="JAX has none"),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)


def test_inspect_array_sharding_is_an_error():
    def function(x):
        jax.debug.inspect_array_sharding(x, callback=print)
        return x

    with pytest.raises(UnsupportedError, match=r"inspect_array_sharding at test_placement.py:\d+ is not supported"):
        inside_jax.jit(function)(X)


def test_shardings_in_memory_of_the_host_are_an_error():
    pinned = NamedSharding(mesh(), P("data"), memory_kind="pinned_host")
    with pytest.raises(UnsupportedError, match=r"at test_placement.py:\d+ is in the memory 'pinned_host'"):
        inside_jax.jit(lambda x: jax.device_put(x, pinned) + 1)(place(X))


def test_memory_on_the_host_is_an_error():
    with pytest.raises(UnsupportedError, match=r"'device_put' of JAX at test_placement.py:\d+ has device="):
        inside_jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Host))(X)


def to_model(x):
    return jax.sharding.reshard(jnp.sin(x), P(None, "model")) * 2


def with_auto_axes(x):
    inner = jax.sharding.auto_axes(lambda x: jnp.cumsum(x, 0) @ x.T, out_sharding=P("data"))
    return inner(x) + 1


def with_out_sharding(x):
    return jnp.einsum("ij,kj->ik", x, x, out_sharding=P("data"))


@pytest.mark.parametrize("function", [to_model, with_auto_axes, with_out_sharding], ids=lambda each: each.__name__)
def test_explicit_axes(function):
    explicit = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        x = jax.device_put(X, P("data"))
        for each in (function, jax.grad(lambda x: jnp.sum(function(x) ** 2))):
            ours, theirs = inside_jax.jit(each)(x), jax.jit(each)(x)
            assert ours.sharding.is_equivalent_to(theirs.sharding, 2)
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
