"""linear_call: reverse mode calls the user's transpose, whose transpose is the function again."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.custom_derivatives import linear_call


def divide(r, x):
    return x / r


def add_quotient(x, denominator):
    return x + linear_call(divide, divide, denominator, x)


def transposed(f, example):
    return lambda y: sw.linear_transpose(f, example)(y)[0]


def sevens(x):
    return linear_call(lambda _, x: 1.0 * x, lambda _, ct: jnp.full_like(ct, 7.0), (), x)


@pytest.mark.parametrize("wrap", [lambda f: f, sw.jit, sw.checkpoint], ids=["eager", "jit", "checkpoint"])
def test_values_and_transposes(wrap):
    f = wrap(lambda x: add_quotient(x, 3.0))
    assert f(9.0) == 12
    assert transposed(f, 1.0)(18.0) == 24
    assert sw.grad(f)(1.0) == pytest.approx(4 / 3)
    assert sw.jvp(f, (9.0,), (3.0,))[1] == 4


def test_the_transpose_of_the_transpose_is_the_function():
    once = transposed(sevens, 1.0)
    twice = transposed(once, 1.0)
    assert (sevens(1.0), once(1.0), twice(1.0), transposed(twice, 1.0)(1.0)) == (1, 7, 1, 7)
    assert sw.grad(sevens)(3.0) == 7


def test_pytrees_and_captured_values():
    factor = jnp.arange(1.0, 4.0)

    @sw.jit
    def f(args, extra):
        def fun(r, linear):
            return {"sum": r["s"] * linear[0] + factor * linear[1], "product": extra * linear[0]}

        def fun_transpose(r, ct):
            return [r["s"] * ct["sum"] + extra * ct["product"], factor * ct["sum"]]

        return linear_call(fun, fun_transpose, {"s": jnp.array(2.0)}, args)

    x, y = jnp.ones(3), jnp.arange(3.0)
    out, pullback = sw.vjp(lambda *args: f(list(args), 5.0), x, y)
    np.testing.assert_allclose(out["sum"], 2 * x + factor * y)
    cotangents = {"sum": jnp.ones(3), "product": jnp.full(3, 2.0)}
    np.testing.assert_allclose(pullback(cotangents)[0], np.full(3, 12.0))
    np.testing.assert_allclose(pullback(cotangents)[1], factor)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap(axes):
    x, r = (jnp.arange(1.0, 4.0) if axis == 0 else jnp.array(2.0) for axis in axes)
    mapped = sw.vmap(add_quotient, axes)
    np.testing.assert_allclose(mapped(x, r), np.broadcast_to(x + x / r, (3,)), rtol=1e-6)
    gradient = sw.grad(lambda x: mapped(x, r).sum())(x)
    np.testing.assert_allclose(gradient, np.broadcast_to(1 + 1 / r, (3,)) if axes[0] == 0 else (1 + 1 / r).sum())
    np.testing.assert_allclose(sw.vmap(sw.grad(sevens))(jnp.ones(3)), [7, 7, 7])


@pytest.mark.jax
def test_values_equal_those_of_jax():
    jax = pytest.importorskip("jax")

    def of(package):
        call = package.custom_derivatives.linear_call
        f = lambda x: x + call(lambda r, x: x / r, lambda r, ct: 2 * ct / r, 3.0, x)  # noqa: E731
        return [f(9.0), package.grad(f)(9.0), package.linear_transpose(f, 1.0)(18.0)[0]]

    np.testing.assert_allclose(of(sw), of(jax), rtol=1e-6)


def test_errors():
    with pytest.raises(NotImplementedError, match="with respect to a residual argument"):
        sw.grad(lambda r: add_quotient(1.0, r))(2.0)
    with pytest.raises(TypeError, match=r"fun_transpose must return the types of linear_args, f32\[3\], not f32\[2\]"):
        linear_call(lambda _, x: x, lambda _, ct: ct[:2], (), jnp.ones(3))
    with pytest.raises(TypeError, match="linear_call"):
        linear_call(None, divide, 1.0, 1.0)
