"""closure_convert and custom_gradient, against JAX's and against each other."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp


def solved(module, namespace):
    """An integral whose integrand closes over a differentiated value, which closure_convert turns into an argument."""

    def integral(f, *closed):
        return sum(f(x, *closed) for x in (0.25, 0.75)) / 2

    rule = module.custom_vjp(integral, nondiff_argnums=(0,))

    def forward(f, *closed):
        return integral(f, *closed), closed

    def backward(f, closed, ct):
        return module.vjp(lambda *given: integral(f, *given), *closed)[1](ct)

    rule.defvjp(forward, backward)

    def total(weight, shift):
        converted, closed = module.closure_convert(lambda x: namespace.sin(weight * x) + shift, 0.0)
        assert len(closed) == 2
        return rule(converted, *closed)

    return module.grad(total, (0, 1))(2.0, 3.0)


@pytest.mark.jax
def test_closed_over_tracers_become_arguments_as_in_jax():
    jax = pytest.importorskip("jax")
    np.testing.assert_allclose(solved(sw, jnp), solved(jax, jax.numpy), rtol=1e-6)


def test_concrete_values_and_integers_are_not_converted():
    scale = jnp.arange(3.0)

    def f(x, index):
        converted, closed = sw.closure_convert(lambda y: {"out": y * scale * x + index}, jnp.ones(3))
        assert len(closed) == 1
        return converted(2 * jnp.ones(3), *closed)["out"].sum()

    assert float(sw.grad(f)(1.5, 1)) == 2 * 3
    converted, closed = sw.closure_convert(lambda y: y * scale, 1.0)
    assert closed == [] and converted(2.0).tolist() == [0, 2, 4]


def test_converted_function_checks_its_arguments():
    converted, _ = sw.closure_convert(lambda pair: pair[0] + pair[1], (1.0, 2.0))
    assert float(converted((3.0, 4.0))) == 7.0
    with pytest.raises(TypeError, match="was converted for arguments of structure"):
        converted([3.0, 4.0])
    with pytest.raises(TypeError, match="takes 1 arguments and 0 closed-over values, but was called with 2 arguments"):
        converted((3.0, 4.0), 1.0)


def gradients(module, namespace):
    @module.custom_gradient
    def clipped(x, y):
        product = namespace.sin(x) * y
        return {"product": product}, lambda ct: (ct["product"] * namespace.clip(y, -1, 1), ct["product"] * 100)

    def loss(x, y):
        return (clipped(x, y)["product"] ** 2).sum()

    xs, ys = np.linspace(0.1, 1, 4, dtype=np.float32), np.linspace(-2, 2, 4, dtype=np.float32)
    return [
        clipped(xs, ys)["product"],
        *module.grad(loss, (0, 1))(xs, ys),
        *module.jit(module.grad(loss, (0, 1)))(xs, ys),
        module.vmap(module.grad(loss))(xs, ys),
    ]


@pytest.mark.jax
def test_custom_gradient_matches_jax():
    jax = pytest.importorskip("jax")
    for ours, theirs in zip(gradients(sw, jnp), gradients(jax, jax.numpy), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_single_cotangent_and_keywords():
    @sw.custom_gradient
    def square(x, *, scale):
        return scale * x * x, lambda ct: 10 * scale * ct

    assert float(square(3.0, scale=2.0)) == 18.0
    assert float(sw.grad(lambda x: square(x, scale=2.0))(3.0)) == 20.0


def test_custom_gradient_without_gradient_raises():
    @sw.custom_gradient
    def square(x):
        return x * x

    with pytest.raises(
        TypeError,
        match="must return a pair of its value and a function from the cotangent of the value to the cotangents",
    ):
        square(3.0)
