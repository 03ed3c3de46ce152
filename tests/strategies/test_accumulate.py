"""Gradient accumulation: against one device, with its collectives."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies
from shardwise.errors import StrategyError
from tests.strategies.mlp import PARAMS, RNG, X, Y, close, loss_of, on_mesh


def test_accumulated_gradients_are_reduced_once(mesh):
    expected = sw.value_and_grad(loss_of)(PARAMS, X, Y)
    once = sw.jit(sw.value_and_grad(loss_of)).lower(*on_mesh(mesh)).plan
    step = sw.jit(strategies.accumulate_gradients(sw.value_and_grad(loss_of), 8))
    close(step(*on_mesh(mesh)), expected, rtol=1e-5, atol=1e-7)
    close(step(PARAMS, X, Y), expected, rtol=1e-5, atol=1e-7)  # on one device
    plan = step.lower(*on_mesh(mesh)).plan
    assert plan.counts() == once.counts() == {"all_reduce": 3}
    assert plan.wire_bytes == once.wire_bytes and {row.times for row in plan.collectives} == {1}


def test_accumulation_with_fsdp_gathers_and_scatters_once(mesh):
    shardings = sw.NamedSharding(mesh, P("data"))
    step = strategies.accumulate_gradients(sw.value_and_grad(loss_of), 4)
    step = sw.jit(step, out_shardings=(None, {"up": shardings, "down": shardings}))
    args = on_mesh(mesh, "data")
    assert step.lower(*args).plan.counts() == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}
    close(step(*args), sw.value_and_grad(loss_of)(PARAMS, X, Y), rtol=1e-5, atol=1e-7)


def test_results_of_microbatches():
    def evaluate(batch, scale):
        hits = batch["label"] == jnp.argmax(batch["x"], -1)
        return {"mean": scale * batch["x"].mean().astype(jnp.bfloat16), "hits": hits.sum()}

    batch = {"x": X, "label": RNG.integers(0, 32, 32)}
    found = strategies.accumulate_gradients(evaluate, 4, batch_argnums=0)(batch, 2.0)
    expected = evaluate(sw.tree.map(jnp.asarray, batch), 2.0)
    assert found["hits"] == expected["hits"] and found["mean"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(found["mean"]), np.float32(expected["mean"]), atol=1e-3)


def test_accumulation_keeps_the_types_of_explicit_axes(explicit_mesh):
    def loss(p, x):
        return jnp.mean(jnp.tanh(x @ p["up"]) ** 2)

    x = sw.device_put(X, P("X"))
    params = sw.device_put(PARAMS, P(None, "Y"))
    value, gradients = sw.jit(strategies.accumulate_gradients(sw.value_and_grad(loss), 4))(params, x)
    assert sw.typeof(gradients["up"]).sharding.spec == P(None, "Y")
    close((value, gradients), sw.value_and_grad(loss)(PARAMS, X), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: strategies.accumulate_gradients(loss_of, 0), "microbatches must be an integer of at least 1"),
        (lambda: strategies.accumulate_gradients(loss_of, 2.0), "an integer of at least 1, not 2.0"),
        (
            lambda: strategies.accumulate_gradients(lambda p, b: 0.0, 4)(
                PARAMS, {"x": X, "y": Y[:4]}
            ),  # would broadcast
            "argument 1 at 'x' has 32 rows, but argument 1 at 'y' has 4 rows",
        ),
        (lambda: strategies.accumulate_gradients(loss_of, 5)(PARAMS, X, Y), "argument 1 has 32 rows, which 5 micro"),
        (
            lambda: strategies.accumulate_gradients(lambda p, b: 0.0, 2)(PARAMS, {"x": X, "n": np.float32(1)}),
            "argument 1 at 'n' is .* which has no rows",
        ),
        (lambda: strategies.accumulate_gradients(loss_of, 2)(PARAMS), "called with 1 positional arguments"),
        (
            lambda: strategies.accumulate_gradients(lambda p, x: x > 0, 2)(PARAMS, X),
            "has dtype bool, which has no mean",
        ),
        (
            lambda: strategies.mixed_precision(loss_of, strategies.PrecisionPolicy(compute=jnp.int8)),
            "compute must be a floating-point dtype",
        ),
        (lambda: strategies.LossScale.create(0.5), "must be at least 1, .* between minimum"),
        (lambda: strategies.all_finite({"a": jnp.arange(3)}), "no floating-point array"),
    ],
)
def test_errors(call, message):
    with pytest.raises(StrategyError, match=message):
        call()
