"""Shardings, devices and layouts."""

import numpy as np
import pytest
from jax.experimental.layout import Layout, with_layout_constraint

from shardwise.errors import UnsupportedError
from tests.inside_jax.primitives.cases import NamedSharding, P, case, inside_jax, jax, jnp, like_jax, mesh

lax = jax.lax

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

CASES = [
    case(
        "sharding_constraint",
        lambda x: lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh(), P("model"))),
        X,
        needs_mesh=True,
    ),
    case("device_put", lambda x: jax.device_put(x, NamedSharding(mesh(), P("data"))) + 1, X, needs_mesh=True),
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


def test_memory_on_the_host_is_an_error():
    with pytest.raises(UnsupportedError, match=r"'device_put' of JAX at test_placement.py:\d+ has device="):
        inside_jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Host))(X)
