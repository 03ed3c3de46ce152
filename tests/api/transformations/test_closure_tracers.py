"""Custom derivative rules that close over traced values that their function does not use."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import UnexpectedTracerError


def with_jvp(factor):
    """Return a function whose derivative is `factor`, by a rule for forward mode."""
    function = sw.custom_jvp(lambda x: 3 * x)
    function.defjvp(lambda primals, tangents: (function(*primals), factor * tangents[0]))
    return function


def with_fwd(factor):
    """Return such a function with a fwd rule that closes over the factor."""
    function = sw.custom_vjp(lambda x: 3 * x)
    function.defvjp(lambda x: (function(x), factor), lambda residual, ct: (residual * ct,))
    return function


def with_bwd(factor):
    """Return such a function with a bwd rule that closes over the factor, in a dict and a partial."""
    factors = {"only": [factor]}
    function = sw.custom_vjp(lambda x: 3 * x)
    function.defvjp(lambda x: (function(x), ()), partial(lambda factors, _, ct: (factors["only"][0] * ct,), factors))
    return function


# Each applies a function with a rule to x twice, except for those without a loop. y is the derivative of the function.
PROGRAMS = {
    "scan": lambda make, x, y: lax.scan(lambda c, _: (make(y)(c), None), x, None, length=2)[0],
    "xs of scan": lambda make, x, y: lax.scan(lambda c, z: (make(z)(c), None), x, jnp.stack([y, y]))[0],
    "checkpoint in scan": lambda make, x, y: lax.scan(sw.checkpoint(lambda c, _: (make(y)(c), None)), x, None, 2)[0],
    "cond": lambda make, x, y: lax.cond(x > 0, lambda x: make(y)(make(y)(x)), lambda x: x, x),
    "checkpoint": lambda make, x, y: sw.checkpoint(lambda x, y: make(y)(make(y)(x)))(x, y),
    "jit": lambda make, x, y: sw.jit(lambda x, y: make(y)(make(y)(x)))(x, y),
}
TRANSFORMS = {
    "grad": sw.grad,
    "jit of grad": lambda f: sw.jit(sw.grad(f)),
    "grad of jit": lambda f: sw.grad(sw.jit(f)),
    "vmap of grad": lambda f: lambda x, y: sw.vmap(sw.grad(f), (None, 0))(x, jnp.stack([y, 2 * y]))[0],
    "grad of vmap": lambda f: (
        lambda x, y: sw.grad(lambda x: sw.vmap(lambda y: f(x, y))(jnp.stack([y, y])).sum() / 2)(x)
    ),
}


@pytest.mark.parametrize("make", [with_jvp, with_fwd, with_bwd])
@pytest.mark.parametrize("program", PROGRAMS)
def test_rule_uses_a_traced_value_of_its_closure(program, make):
    function = partial(PROGRAMS[program], make)
    for name, transform in TRANSFORMS.items():
        np.testing.assert_allclose(transform(function)(1.5, 5.0), 25, err_msg=name)


@pytest.mark.parametrize("make", [with_jvp, with_fwd, with_bwd])
def test_value_of_the_closure_is_differentiated(make):
    with pytest.raises(UnexpectedTracerError):
        sw.grad(partial(PROGRAMS["scan"], make), argnums=(0, 1))(1.5, 5.0)


def test_rule_uses_the_shape_of_a_value_that_is_differentiated():
    def program(x, y):
        function = sw.custom_jvp(lambda x: 3 * x)
        function.defjvp(lambda primals, tangents: (function(*primals), y.shape[0] * tangents[0]))
        return lax.scan(lambda c, _: (function(c), None), x, None, length=2)[0] * y.sum()

    x_gradient, y_gradient = sw.grad(program, argnums=(0, 1))(1.5, jnp.ones(4))
    np.testing.assert_allclose(x_gradient, 64)
    np.testing.assert_allclose(y_gradient, np.full(4, 13.5))
