"""Loss scaling: against one device, with its collectives."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies
from tests.strategies.mlp import PARAMS, X, Y, close, loss_of, on_mesh


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
