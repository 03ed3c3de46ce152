"""Gradients inside shard_map: cotangents of the wrong type, and sums over devices that users may not expect."""

import re
import warnings

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.errors import TangentMismatchError
from shardwise.sharding import PartitionSpec as P

W = np.array([1.0, 2.0], np.float32)
X = np.arange(4, dtype=np.float32)


SHARDED = P("i")


def mapped(function, *args, in_specs=SHARDED, out_specs=SHARDED):
    return sw.shard_map(function, mesh=sw.make_mesh((2,), ("i",)), in_specs=in_specs, out_specs=out_specs)(*args)


def mean_of_squares(w):
    return jnp.mean(w**2)


def transpose_of_linearized(t):
    _, forward = sw.linearize(mean_of_squares, jnp.asarray(W))
    return sw.linear_transpose(forward, jnp.asarray(W))(forward(t))[0]


def vjp(t):
    return sw.vjp(mean_of_squares, jnp.asarray(W))[1](t.sum())[0]


def transpose_of_function(t):
    return sw.linear_transpose(lambda w: 2 * w, jnp.asarray(W))(t)[0]


@pytest.mark.parametrize("function", [transpose_of_linearized, vjp, transpose_of_function])
def test_a_varying_cotangent_of_a_replicated_value_is_an_error(function):
    """Summing it over devices would be silent and wrong (jax#28260)."""
    with pytest.raises(TangentMismatchError, match=r"varies over 'i'.*replicated.*lax\.pcast\(x, 'i', to='varying'\)"):
        mapped(function, X)
    assert issubclass(TangentMismatchError, ValueError)


def test_a_varying_tangent_of_a_replicated_primal_gives_a_varying_tangent():
    forward = mapped(lambda t: sw.linearize(mean_of_squares, jnp.asarray(W))[1](t)[None], X)
    np.testing.assert_allclose(forward, [2.0, 8.0])
    np.testing.assert_allclose(mapped(lambda t: sw.jvp(mean_of_squares, (W,), (t,))[1][None], X), [2.0, 8.0])


def test_a_replicated_cotangent_of_a_varying_value_is_cast():
    np.testing.assert_allclose(mapped(lambda t: sw.linear_transpose(lambda x: 2 * x, t)(W)[0], X), [2, 4, 2, 4])


def captured_in_vmap(x):
    return sw.vmap(lambda row: sw.grad(lambda w: (w * row).sum())(W))(x)


def captured(x):
    return sw.grad(lambda w: (w * x).sum())(W)


def captured_in_a_loop(x):
    def step(total, row):
        return total + sw.grad(lambda w: (w * row).sum())(W), None

    return lax.scan(step, jnp.zeros(2), x)[0]


def captured_vjp(x):
    return sw.vjp(lambda w: (w * x).sum(), W)[1](x.sum())[0]


@pytest.mark.parametrize(
    "function, x, out_specs",
    [
        (captured_in_vmap, X.reshape(2, 2), P("i")),
        (captured, X, P()),
        (captured_in_a_loop, X.reshape(2, 2), P()),
        (captured_vjp, X, P()),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_that_is_summed_over_devices_is_warned_of(function, x, out_specs, compiled):
    """A user expected the gradients of each device (jax#36886)."""

    def run(x):
        return mapped(function, x, out_specs=out_specs)

    with pytest.warns(UserWarning, match="is the sum over all devices along 'i'") as caught:
        (sw.jit(run) if compiled else run)(x)
    (warning,) = caught
    assert warning.filename == __file__
    assert re.search(r"lax\.pcast\(x, 'i', to='varying'\)", str(warning.message))


def argument_then_mean(w, x):
    return lax.pmean(sw.grad(lambda w: (w * x).sum())(w), "i")


def argument(w, x):
    return sw.grad(lambda w: (w * x).sum())(w)


def captured_then_mean(w, x):
    return lax.pmean(captured(x), "i")


def captured_then_update_and_mean(w, x):
    return lax.psum(W - 0.1 * captured(x), "i")


def captured_with_a_reduced_loss(w, x):
    return sw.grad(lambda w: lax.pmean((w * x).sum(), "i"))(W)


def captured_and_cast(w, x):
    return lax.psum(sw.grad(lambda w: (w * x).sum())(lax.pcast(W, "i", to="varying")), "i")


@sw.custom_vjp
def scaled_sum(w, scale, x):
    return (w * scale * x).sum()


def scaled_sum_bwd(residuals, cotangent):
    return sw.vjp(lambda w, scale, x: (w * scale * x).sum(), *residuals)[1](cotangent)


scaled_sum.defvjp(lambda *args: (scaled_sum(*args), args), scaled_sum_bwd)


def captured_in_a_backward_rule(w, x):
    """The rule computes the gradient of the captured scale, which is dropped."""
    return sw.grad(lambda w: scaled_sum(w, 2 * W, x))(w)


@sw.custom_vjp
def sum_with_saved_vjp(w, scale, x):
    return (w * scale * x).sum()


sum_with_saved_vjp.defvjp(
    lambda *args: sw.vjp(lambda w, scale, x: (w * scale * x).sum(), *args), lambda pullback, ct: pullback(ct)
)


def captured_in_a_forward_rule(w, x):
    return sw.grad(lambda w: sum_with_saved_vjp(w, W, x))(w)


@pytest.mark.parametrize(
    "function",
    [
        argument,
        argument_then_mean,
        captured_then_mean,
        captured_then_update_and_mean,
        captured_with_a_reduced_loss,
        captured_and_cast,
        captured_in_a_backward_rule,
        captured_in_a_forward_rule,
    ],
)
def test_ordinary_steps_are_not_warned_of(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapped(function, W, X, in_specs=(P(), P("i")), out_specs=P())


@pytest.mark.parametrize(
    "create",
    [
        jnp.zeros_like,
        jnp.ones_like,
        jnp.empty_like,
        lambda x: jnp.full_like(x, 2.0),
        lambda x: jnp.full_like(x, np.float32(2)),
        lambda x: jnp.full_like(x, jnp.float32(2)),
        lambda x: jnp.zeros_like(x, dtype=jnp.float32, shape=(2,)),
        lambda x: jnp.zeros_like(sw.eval_shape(jnp.sin, x)),
        lambda x: x.at[:].set(0.0),
        lambda x: x.at[:2].set(0.0),
        lambda x: x[:0],
        lambda x: x[2:0:-1][:0],
        lambda x: x[np.zeros(0, np.int32)],
        lambda x: jnp.take_along_axis(x, np.zeros(0, np.int32), 0),
    ],
)
def test_an_array_like_a_varying_one_varies_too(create):
    """As in JAX; otherwise, a gradient with respect to it would be summed over devices."""

    def function(x):
        y = create(x)
        assert sw.typeof(y).vma == {"i"}
        return y

    mapped(function, X)


def test_a_gradient_with_respect_to_zeros_like_a_varying_array_is_not_summed():
    gradients = mapped(lambda x: sw.grad(lambda shift: ((x + shift) ** 2).sum())(jnp.zeros_like(x)), X)
    np.testing.assert_allclose(gradients, 2 * X)


def test_an_array_like_a_replicated_one_is_replicated():
    mapped(lambda x: jnp.zeros_like(jnp.asarray(W)) + jnp.asarray(W)[:0].sum(), X, out_specs=P())
