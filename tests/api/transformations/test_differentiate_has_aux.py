"""has_aux: aux is a pytree of any objects outside jit, compared with JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax
ARRAY = np.arange(3)


def value_and_aux(x):
    return (x**2).sum(), {"text": "a", "int": 3, "none": None, "numpy": ARRAY, "traced": (2 * x, len)}


def elements_and_aux(x):
    return x**2, value_and_aux(x)[1]


TRANSFORMATIONS = {
    "grad": lambda m, x: m.grad(value_and_aux, has_aux=True)(x),
    "value_and_grad": lambda m, x: m.value_and_grad(value_and_aux, has_aux=True)(x),
    "grad of grad": lambda m, x: m.grad(lambda x: m.grad(value_and_aux, has_aux=True)(x)[0].sum())(x),
    "vjp": lambda m, x: m.vjp(elements_and_aux, x, has_aux=True)[2],
    "jvp": lambda m, x: m.jvp(elements_and_aux, (x,), (x,), has_aux=True),
    "linearize": lambda m, x: m.linearize(elements_and_aux, x, has_aux=True)[2],
    "jacrev": lambda m, x: m.jacrev(elements_and_aux, has_aux=True)(x),
    "grad in jit": lambda m, x: m.jit(lambda x: m.grad(value_and_aux, has_aux=True)(x)[0])(x),
}


def check(ours, theirs):
    ours, our_tree = sw.tree.flatten(ours)
    theirs, their_tree = jax.tree.flatten(theirs)
    assert str(our_tree) == str(their_tree)
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(mine, sw.Array):
            assert isinstance(other, jax.Array)
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other))
        else:
            assert mine is other


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_same_as_jax(name):
    run = TRANSFORMATIONS[name]
    check(run(sw, jnp.arange(3.0)), run(jax, jax.numpy.arange(3.0)))


@pytest.mark.parametrize("transformation", [sw.jacfwd, sw.hessian])
def test_forward_mode(transformation):
    """JAX maps aux by vmap, so that these accept arrays only; here the objects are the same as in reverse mode."""
    x = jnp.arange(3.0)
    function = value_and_aux if transformation is sw.hessian else elements_and_aux
    derivative, aux = transformation(function, has_aux=True)(x)
    expected = value_and_aux(np.arange(3.0))[1]
    assert (aux["text"], aux["int"], aux["traced"][1]) == ("a", 3, len)
    assert aux["numpy"] is ARRAY
    np.testing.assert_array_equal(aux["traced"][0], expected["traced"][0])
    np.testing.assert_allclose(derivative, np.diag([2.0] * 3 if transformation is sw.hessian else 2 * np.arange(3.0)))


def test_aux_under_jit_must_be_arrays():
    with pytest.raises(TypeError, match="returned 'text'"):
        sw.jit(sw.grad(lambda x: (x, "text"), has_aux=True))(1.0)


def test_linear_functions_are_pytrees():
    """Jitted functions return the functions that linearize, vjp and linear_transpose return, and accept them."""

    @sw.jit
    def derivatives(x):
        _, pushforward = sw.linearize(lambda x: jnp.sin(x) * x, x)
        _, pullback = sw.vjp(lambda x: jnp.sin(x) * x, x)
        return pushforward, pullback, sw.linear_transpose(lambda y: x * y, x)

    call = sw.jit(lambda function, argument: function(argument))
    x = jnp.arange(1.0, 4.0)
    pushforward, pullback, transposed = derivatives(x)
    slope = np.cos(x) * x + np.sin(x)
    np.testing.assert_allclose(pushforward(2 * x), 2 * slope * x, rtol=1e-6)
    np.testing.assert_allclose(call(pushforward, x), slope * x, rtol=1e-6)
    np.testing.assert_allclose(pullback(x)[0], slope * x, rtol=1e-6)
    np.testing.assert_allclose(call(transposed, x)[0], x * x, rtol=1e-6)
    assert len(sw.tree.leaves(pushforward)) > 0
    again, *_ = derivatives(2 * x)
    assert sw.tree.structure(again) == sw.tree.structure(pushforward)
