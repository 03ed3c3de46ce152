"""Gradient accumulation, mixed precision and loss scaling: against one device, with their collectives."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies
from shardwise.errors import StrategyError

RNG = np.random.default_rng(0)
PARAMS = {
    "up": (RNG.normal(size=(32, 64)) * 0.1).astype(np.float32),
    "down": (RNG.normal(size=(64, 32)) * 0.1).astype(np.float32),
}
X, Y = RNG.normal(size=(2, 32, 32)).astype(np.float32)


def loss_of(params, x, y):
    out = jnp.tanh(x @ params["up"]) @ params["down"]
    return jnp.mean((out - y).astype(jnp.float32) ** 2)


def on_mesh(mesh, axis=None):
    """Return the parameters, sharded over an axis or replicated, and a batch whose rows are sharded."""
    rows = sw.NamedSharding(mesh, P("data"))
    return sw.device_put(PARAMS, sw.NamedSharding(mesh, P(axis))), sw.device_put(X, rows), sw.device_put(Y, rows)


def close(found, expected, **tolerance):
    sw.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


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


def test_mixed_precision_casts_each_weight_once(mesh):
    half = strategies.mixed_precision(loss_of)
    expected = sw.value_and_grad(loss_of)(PARAMS, X, Y)
    found = sw.value_and_grad(half)(PARAMS, X, Y)
    assert all(leaf.dtype == jnp.float32 for leaf in sw.tree.leaves(found))
    close(found, expected, rtol=0.05, atol=2e-4)
    args = on_mesh(mesh, "data")
    for step in (sw.value_and_grad(half), strategies.accumulate_gradients(sw.value_and_grad(half), 4)):
        lowered = sw.jit(step).lower(*args)
        casts = re.findall(r"stablehlo.convert.*\(tensor<(8x64|16x32)xf32>\) -> tensor<\1xbf16>", lowered.as_text())
        assert sorted(casts) == ["16x32", "8x64"]  # the shards of the two weights
        gathers = [row for row in lowered.plan.collectives if row.kind == "all_gather"]
        assert gathers and all(row.type.startswith("bf16") for row in gathers)
        close(sw.jit(step)(*args), expected, rtol=0.05, atol=2e-4)
    # FSDP gathers the weights of all microbatches once, after the cast: each device gets 3/4 of their bfloat16 bytes.
    assert sum(row.sent * row.times for row in gathers) == sum(p.size for p in PARAMS.values()) * 2 * 3 / 4


def train(args, batches, scale):
    """Train in float16 with loss scaling; return the losses, the factors and the parameters after each step."""
    policy = strategies.PrecisionPolicy(compute=jnp.float16)

    @sw.jit
    def step(params, scale, x, y):
        loss = strategies.mixed_precision(loss_of, policy)
        scaled = strategies.accumulate_gradients(sw.value_and_grad(lambda *a: scale.scale(loss(*a))), 2)
        value, gradients = scale.unscale(scaled(params, x, y))
        is_finite = strategies.all_finite(gradients)
        updated = sw.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return strategies.select(is_finite, updated, params), scale.update(is_finite), value, is_finite

    (params, x, y), log = args, []
    for factor in batches:
        params, scale, value, is_finite = step(params, scale, x * factor, y)
        log.append((float(value), float(scale.factor), bool(is_finite)))
    return log, params, step.lower(*args[:1], scale, *args[1:])


def test_loss_scaling_skips_steps_that_overflow(mesh):
    # One row of the third batch is so large that its activations overflow: one device alone would see it.
    factor = np.ones((32, 1), np.float32)
    bad = factor.copy()
    bad[5] = 1e6
    batches = [factor, factor, bad, factor, factor, factor]
    create = strategies.LossScale.create
    expected, expected_params, _ = train((PARAMS, X, Y), batches, create(2.0**12, growth_interval=3))
    scale = sw.device_put(create(2.0**12, growth_interval=3), sw.NamedSharding(mesh, P()))
    rows = sw.NamedSharding(mesh, P("data"))
    found, params, lowered = train(on_mesh(mesh), [sw.device_put(b, rows) for b in batches], scale)
    assert [row[1:] for row in found] == [row[1:] for row in expected]
    assert [is_finite for *_, is_finite in found] == [True, True, False, True, True, True]
    assert [factor for _, factor, _ in found] == [2.0**12, 2.0**12, 2.0**11, 2.0**11, 2.0**11, 2.0**12]
    np.testing.assert_allclose([row[0] for row in found[3:]], [row[0] for row in expected[3:]], rtol=1e-3)
    close(params, expected_params, rtol=1e-2, atol=1e-4)
    # The gradients and the loss, reduced once, are replicated: the check needs no collective of its own.
    assert lowered.plan.counts() == {"all_reduce": 3}
    # With the scale, small gradients do not vanish in float16.
    tiny = sw.value_and_grad(lambda w: (w.astype(jnp.float16) * np.float16(1e-5)).sum().astype(jnp.float32) * 1e-4)
    assert float(tiny(jnp.ones(()))[1]) == 0.0
    scale = create(2.0**14)
    scaled = sw.grad(lambda w: scale.scale((w.astype(jnp.float16) * np.float16(1e-5)).sum().astype(jnp.float32) * 1e-4))
    assert float(scale.unscale(scaled(jnp.ones(())))) == pytest.approx(1e-9, rel=0.05)


def test_the_check_of_sharded_gradients_is_one_all_reduce(mesh):
    gradients = sw.device_put(PARAMS, sw.NamedSharding(mesh, P("data", "model")))
    check = sw.jit(strategies.all_finite)
    assert check.lower(gradients).plan.counts() == {"all_reduce": 1}
    assert bool(check(gradients))
    gradients["up"] = gradients["up"].at[3, 40].set(jnp.nan)
    assert not bool(check(gradients))


def test_bounds_of_the_loss_scale():
    scale = strategies.LossScale.create(4.0, growth_interval=1, minimum=2.0, maximum=8.0)
    for is_finite, factor in ((True, 8.0), (True, 8.0), (False, 4.0), (False, 2.0), (False, 2.0)):
        scale = scale.update(jnp.array(is_finite))
        assert float(scale.factor) == factor
    leaves, structure = sw.tree.flatten(scale)
    assert len(leaves) == 2 and structure.unflatten(leaves) == scale
