"""Derivatives of custom_linear_solve and custom_root, and their errors."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax


def test_linear_solve_errors():
    def solve_sum(b):
        return lax.custom_linear_solve(lambda x: 2.0 * x, b, lambda matvec, b: b / 2).sum()

    x = np.array([1.0, 2.0], np.float32)
    np.testing.assert_allclose(sw.jvp(solve_sum, (x,), (x,))[1], 1.5)
    with pytest.raises(TypeError, match="no transpose_solve was given"):
        sw.grad(solve_sum)(x)
    with pytest.raises(TypeError, match="solve must return f32"):
        lax.custom_linear_solve(lambda x: x, x, lambda matvec, b: b[0])


def test_gradient_of_linear_solve_inside_scan():
    """The solver is a while_loop, which has no transpose: the gradient must be implicit."""

    def total(a, package, lax):
        def solve_by_halving(matvec, b):
            return lax.while_loop(lambda x: (matvec(x) > b).any(), lambda x: x / 2, 8 * b)

        def step(b, _):
            x = lax.custom_linear_solve(lambda x: a * x, b, solve_by_halving, symmetric=True)
            return x + 1, x.sum()

        last, sums = lax.scan(step, package.numpy.array([1.0, 2.0]), None, length=3)
        return (last**2).sum() + sums.sum()

    np.testing.assert_allclose(
        sw.grad(lambda a: total(a, sw, lax))(4.0), jax.grad(lambda a: total(a, jax, jax.lax))(4.0), rtol=1e-5
    )


@pytest.mark.slow
def test_higher_derivatives_of_custom_root():
    def cube_root(a, package, lax):
        def newton(f, x):
            return lax.fori_loop(0, 20, lambda _, x: x - f(x) / (3 * x * x), x)

        return lax.custom_root(lambda x: x**3 - a, a, newton, lambda g, y: y / g(1.0))

    for order in range(1, 4):
        ours, theirs = (lambda a: cube_root(a, sw, lax)), (lambda a: cube_root(a, jax, jax.lax))
        for _ in range(order):
            ours, theirs = sw.grad(ours), jax.grad(theirs)
        np.testing.assert_allclose(ours(2.0), theirs(2.0), rtol=1e-4)
