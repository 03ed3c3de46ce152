"""Objects with a method `__jax_array__` are accepted by array functions and operators, as in JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax

VALUE = np.arange(1.0, 4.0, dtype=np.float32)


class Wrapped:
    def __init__(self, value=None):
        self.value = jnp.asarray(VALUE) if value is None else value

    def __jax_array__(self):
        return self.value


CALLS = {
    "operator": lambda x: jnp.ones(3) + x,
    "reflected operator": lambda x: x * jnp.ones(3),
    "comparison": lambda x: jnp.ones(3) < x,
    "jnp.sin": jnp.sin,
    "jnp.sum": jnp.sum,
    "jnp.dot": lambda x: jnp.dot(x, x),
    "jnp.where": lambda x: jnp.where(x, x, 0.0),
    "jnp.concatenate": lambda x: jnp.concatenate([x, x]),
    "jnp.array": jnp.array,
    "nested lists": lambda x: jnp.array([[x, x], [x, x]]),
    "jnp.full_like": lambda x: jnp.full_like(x, Wrapped(jnp.float32(2))),
    "jnp.nonzero": lambda x: jnp.nonzero(x)[0],
    "lax.sin": lax.sin,
    "device_put": sw.device_put,
    "shape": lambda x: np.array(jnp.shape(x)),
    "inside jit": lambda x: sw.jit(lambda y: jnp.sin(x) * y)(2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_same_as_the_array(name):
    np.testing.assert_array_equal(CALLS[name](Wrapped()), CALLS[name](jnp.asarray(VALUE)))


@pytest.mark.parametrize("transformation", [sw.grad, sw.jit, sw.vmap])
def test_tracers(transformation):
    argument = VALUE if transformation is sw.vmap else 2.0
    ours = transformation(lambda x: jnp.sin(Wrapped(x)) * Wrapped(x))(argument)
    np.testing.assert_array_equal(ours, transformation(lambda x: jnp.sin(x) * x)(argument))


def test_properties():
    scalar = Wrapped(jnp.array(1))
    assert jnp.isscalar(scalar) and not jnp.isscalar(Wrapped())
    assert jnp.result_type(scalar, Wrapped()) == np.float32
    assert jnp.size(Wrapped()) == 3


def test_arguments_of_jit_raise_as_in_jax():
    with pytest.raises(ValueError, match=r"argument `x` of `<lambda>` .*has a method `__jax_array__`"):
        sw.jit(lambda x: x)(Wrapped())
