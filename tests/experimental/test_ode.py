"""odeint: solutions and gradients like JAX's, scipy's and closed forms."""

import numpy as np
import pytest
import scipy.integrate

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental.ode import odeint

TIMES = np.linspace(0.0, 2.0, 5).astype(np.float32)


def pendulum(namespace):
    def dynamics(y, t, friction, gravity):
        angle, speed = y
        return [speed, -friction * speed - gravity * namespace.sin(angle) + 0.1 * t]

    return dynamics


def start():
    return [np.float32(1.0), np.float32(0.2)]


@pytest.mark.jax
@pytest.mark.table(default=1)
@pytest.mark.parametrize("options", [{}, {"rtol": 1e-4, "atol": 1e-5}, {"hmax": 0.05, "rtol": 1e-5}], ids=str)
def test_solution_like_jax(options):
    jax = pytest.importorskip("jax")
    from jax.experimental.ode import odeint as jax_odeint  # noqa: PLC0415 - without jax, the other tests run

    theirs = jax_odeint(pendulum(jax.numpy), start(), jax.numpy.asarray(TIMES), 0.25, 9.8, **options)
    ours = odeint(pendulum(jnp), start(), TIMES, 0.25, 9.8, **options)
    for x, y in zip(ours, theirs, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, atol=2e-5)


@pytest.mark.jax
@pytest.mark.slow
def test_gradients_like_jax():
    jax = pytest.importorskip("jax")
    from jax.experimental.ode import odeint as jax_odeint  # noqa: PLC0415

    def loss(namespace, solve):
        def value(y0, times, friction, gravity):
            states = solve(pendulum(namespace), y0, times, friction, gravity, rtol=1e-6, atol=1e-6)
            return sum((namespace.sin(state) * namespace.arange(5.0)).sum() for state in states)

        return value

    args = (start(), TIMES, np.float32(0.25), np.float32(9.8))
    theirs = jax.grad(loss(jax.numpy, jax_odeint), argnums=(0, 1, 2, 3))(*args)
    ours = sw.grad(loss(jnp, odeint), argnums=(0, 1, 2, 3))(*args)
    for x, y in zip(sw.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def test_solution_like_scipy_in_double_precision():
    with sw.enable_x64(True):
        times = np.linspace(0.0, 3.0, 4)
        ours = odeint(lambda y, t: jnp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]]), jnp.array([2.0, 0.0]), times)
        theirs = scipy.integrate.solve_ivp(
            lambda t, y: [y[1], (1 - y[0] ** 2) * y[1] - y[0]], (0, 3), [2, 0], "DOP853", times, rtol=1e-11, atol=1e-11
        )
        np.testing.assert_allclose(ours, theirs.y.T, atol=1e-6)


def test_gradient_of_a_closed_form():
    """Of y(t) = y₀ exp(-rate t), also with respect to a value that the function closes over."""

    def last(y0, t, rate, captured):
        return odeint(lambda y, t, rate: -rate * captured * y, y0, jnp.stack([0.0 * t, t]), rate, rtol=1e-6)[1]

    by_y0, by_t, by_rate, by_captured = sw.grad(last, argnums=(0, 1, 2, 3))(3.0, 0.5, 2.0, 1.5)
    decay = np.exp(-1.5)
    np.testing.assert_allclose([by_y0, by_t], [decay, -9 * decay], rtol=1e-4)
    np.testing.assert_allclose([by_rate, by_captured], [-3 * 0.75 * decay, -3 * decay], rtol=1e-4)


@pytest.mark.slow
def test_integer_arguments_complex_states_and_transformations():
    def last(speed, power):
        y0 = jnp.array([1.0 + 0.0j])
        return odeint(lambda y, t, n: 1j * speed**n * y, y0, jnp.array([0.0, 1.0]), power, rtol=1e-5)[1, 0].real

    np.testing.assert_allclose(last(2.0, 2), np.cos(4), atol=1e-4)
    by_speed = sw.jit(sw.grad(last))(2.0, np.int32(2))
    np.testing.assert_allclose(by_speed, -4 * np.sin(4), rtol=1e-3)
    np.testing.assert_allclose(sw.vmap(last, (0, None))(jnp.array([1.0, 2.0]), 1), np.cos([1.0, 2.0]), atol=1e-4)


def test_options_bound_the_steps():
    stiff = lambda y, t: -50 * y  # noqa: E731
    exact = odeint(stiff, jnp.array(1.0), jnp.array([0.0, 1.0]), rtol=1e-5, atol=1e-8)
    assert abs(float(exact[1])) < 1e-6
    few = odeint(stiff, jnp.array(1.0), jnp.array([0.0, 1.0]), rtol=1e-5, atol=1e-8, mxstep=2)
    assert abs(float(few[1])) > 1  # the polynomial of the last step, far outside of it


def test_errors():
    slope = lambda y, t: y  # noqa: E731
    with pytest.raises(TypeError, match="t must be an array of a floating dtype, not i32"):
        odeint(slope, 1.0, jnp.arange(2))
    with pytest.raises(TypeError, match="y0 must be of floating or complex dtypes, not i32"):
        odeint(slope, [1.0, 1], TIMES)
    with pytest.raises(TypeError, match="odeint"):
        odeint(slope, 1.0, TIMES, "text")
