"""jet: derivatives along a curve like those of JAX's rules, and like nested jvp where JAX has no rule."""

import math

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental.jet import jet

X = np.array([0.3, -0.4, 0.7], np.float32)
SERIES = [np.array(term, np.float32) for term in ([1.0, 0.5, -0.2], [0.3, 0.2, 0.1], [0.0, 0.4, 0.0])]
# Functions of a namespace (that of Shardwise or of JAX) and an array, for every kind of rule of JAX.
LIKE_JAX = {
    "floor": lambda jax, x: jax.numpy.floor(x) * x + jax.lax.stop_gradient(x) * x,
    "linear": lambda jax, x: jax.numpy.flip(jax.numpy.cumsum(3 * x - 1)).reshape(3, 1).sum(1),
    "mul": lambda jax, x: x * x * (2 + x),
    "dot": lambda jax, x: jax.numpy.dot(x, jax.numpy.outer(x, x)),
    "conv": lambda jax, x: jax.numpy.convolve(x, x),
    "div": lambda jax, x: (1 + x) / (2 + x * x),
    "exp": lambda jax, x: jax.numpy.exp(x),
    "expm1": lambda jax, x: jax.numpy.expm1(x),
    "log": lambda jax, x: jax.numpy.log(2 + x),
    "log1p": lambda jax, x: jax.numpy.log1p(x),
    "sqrt": lambda jax, x: jax.numpy.sqrt(1 + x),
    "rsqrt": lambda jax, x: jax.lax.rsqrt(1 + x),
    "power": lambda jax, x: (2 + x) ** (1 + x),
    "integer_pow": lambda jax, x: x**3 + (2 + x) ** -2,
    "tanh": lambda jax, x: jax.numpy.tanh(x),
    "logistic": lambda jax, x: jax.nn.sigmoid(x),
    "sin": lambda jax, x: jax.numpy.sin(x),
    "cos": lambda jax, x: jax.numpy.cos(x),
    "sinh": lambda jax, x: jax.numpy.sinh(x),
    "cosh": lambda jax, x: jax.numpy.cosh(x),
    "arctan2": lambda jax, x: jax.numpy.arctan2(x, 1 + x),
    "arcsinh": lambda jax, x: jax.numpy.arcsinh(x),
    "arctanh": lambda jax, x: jax.numpy.arctanh(x / 2),
    "erf": lambda jax, x: jax.lax.erf(x),
    "erf_inv": lambda jax, x: jax.lax.erf_inv(x / 2),
    "abs": lambda jax, x: jax.numpy.abs(x),
    "max": lambda jax, x: jax.numpy.maximum(x, 0.1 * x * x) + jax.numpy.max(x * x),
    "select": lambda jax, x: jax.numpy.where(x > 0, x * x, -x),
    "gather": lambda jax, x: (x * x)[np.array([2, 0])],
    "softmax": lambda jax, x: jax.nn.softmax(x * x),
    "jit": lambda jax, x: jax.jit(lambda x: jax.numpy.exp(x) * x)(x),
}


def assert_close(ours, expected, note=""):
    leaves, expected_leaves = sw.tree.leaves(ours), sw.tree.leaves(expected)
    assert len(leaves) == len(expected_leaves)
    for x, y in zip(leaves, expected_leaves, strict=True):
        assert (x.shape, x.dtype) == (np.shape(y), y.dtype), note
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-4, err_msg=note)


@pytest.mark.jax
@pytest.mark.table(default=8)
@pytest.mark.parametrize("name", list(LIKE_JAX))
def test_like_jax(name):
    jax = pytest.importorskip("jax")
    from jax.experimental.jet import jet as jax_jet  # noqa: PLC0415 - without jax, the other tests run

    function = LIKE_JAX[name]
    ours = jet(lambda x: function(sw, x), (X,), (SERIES,))
    assert_close(ours, jax_jet(lambda x: function(jax, x), (X,), (SERIES,)), name)


def nested(function, x, series):
    """Return the derivatives of function(x + Σ tⁿ series[n - 1] / n!) at t = 0, by jvp of jvp."""

    def along_curve(t):
        return function(x + sum(t**n / math.factorial(n) * term for n, term in enumerate(series, 1)))

    def differentiate(inner):
        return lambda t: sw.jvp(inner, (t,), (1.0,))[1]

    derivatives, derivative = [], along_curve
    for _ in series:
        derivative = differentiate(derivative)
        derivatives.append(derivative(0.0))
    return along_curve(0.0), derivatives


NESTED = {
    "lgamma": lambda x: lax.lgamma(2 + x),
    "solve": lambda x: jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), x),
    "scan": lambda x: lax.scan(lambda c, _: (jnp.sin(c) * x, c), x, None, length=2)[0],
    "cond": lambda x: lax.cond(x[0] > 0, jnp.exp, jnp.cos, x),
    "sort": lambda x: jnp.sort(x * x),
}


@pytest.mark.table(default=1)
@pytest.mark.parametrize("name", list(NESTED))
def test_ops_without_a_rule_in_jax_are_like_nested_jvp(name):
    assert_close(jet(NESTED[name], (X,), (SERIES,)), nested(NESTED[name], X, SERIES), name)


def test_several_arguments_captured_values_and_pytrees():
    captured = jnp.array([1.0, 2.0, 3.0])

    def function(x, y):
        return {"product": x * y * captured, "constant": captured, "count": jnp.arange(2)}

    value, series = jet(function, (X, 2 * X), (SERIES[:2], SERIES[1:]))
    np.testing.assert_allclose(series["product"][0], (SERIES[0] * 2 * X + X * SERIES[1]) * captured, rtol=1e-6)
    assert [term.tolist() for term in series["constant"]] == [[0, 0, 0]] * 2
    assert value["count"].tolist() == [0, 1] and len(series["count"]) == 2


def test_coefficients_without_factorials():
    third = jet(lambda x: x**3, (2.0,), ((1.0, 0.0, 0.0),))[1]
    plain = jet(lambda x: x**3, (2.0,), ((1.0, 0.0, 0.0),), factorial_scaled=False)[1]
    assert [float(term) for term in third] == [12, 12, 6] and [float(term) for term in plain] == [12, 6, 1]


def test_custom_derivatives_are_ignored_and_transformations_compose():
    @sw.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, ct: (100 * x * ct,))
    second = lambda x: jet(square, (x,), ((jnp.ones_like(x), jnp.zeros_like(x)),))[1][1]  # noqa: E731
    np.testing.assert_allclose(sw.jit(sw.vmap(second))(jnp.arange(3.0)), [2, 2, 2])
    third = sw.grad(lambda x: jet(jnp.sin, (x,), ((1.0, 0.0),))[1][1])(0.5)
    np.testing.assert_allclose(third, -np.cos(0.5), rtol=1e-5)


def test_cost_is_polynomial_in_the_order():
    def count(order):
        series = tuple(jnp.ones(()) for _ in range(order))
        return len(sw.make_jaxpr(lambda x: jet(lambda x: jnp.exp(x) / (1 + x * x), (x,), (series,)))(1.0).eqns)

    assert count(8) < 10 * count(4)


def test_errors():
    with pytest.raises(ValueError, match=r"has 2 arguments, and each needs a series of the same length.*\[1, 2\]"):
        jet(lambda x, y: x * y, (1.0, 2.0), ((1.0,), (1.0, 0.0)))
    with pytest.raises(ValueError, match=r"argument 0 of .* must be arrays"):
        jet(lambda x: x, ((1.0, 2.0),), ((1.0,),))
    with pytest.raises(TypeError, match=r"argument 0 of .* is of type i32\[\].*, which has no derivatives"):
        jet(lambda x: x, (1,), ((1.0,),))
    ref = sw.new_ref(0.0)
    with pytest.raises(ValueError, match="changes a Ref"):
        jet(lambda x: ref.__setitem__(..., x) or x, (1.0,), ((1.0,),))
