"""Shardings, devices and layouts."""

import numpy as np
import pytest
from jax.experimental.layout import Layout, with_layout_constraint

from tests.inside_jax.primitives.cases import NamedSharding, P, case, jax, jnp, like_jax, mesh

lax = jax.lax

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

CASES = [
    case("sharding_constraint", lambda x: lax.with_sharding_constraint(
        jnp.sin(x), NamedSharding(mesh(), P("model"))), X, needs_mesh=True),
    case("device_put", lambda x: jax.device_put(x, NamedSharding(mesh(), P("data"))) + 1, X, needs_mesh=True),
    case("device_put_nowhere", lambda x: jax.device_put(x) + 1, X),
    case("device_put_memory", lambda x: jax.device_put(x, jax.memory.Space.Device) * 2, X),
    case("layout_constraint", lambda x: with_layout_constraint(x, Layout((1, 0))) + 1, X, no_grad="JAX has none"),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)
