"""The schedule end to end: training steps on CPU devices, planned as for hardware that overlaps, against one device."""

from dataclasses import replace

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, lax
from shardwise.compiler.plan.hardware import CPU, chip
from shardwise.execute import request

LAYERS, MODEL, HIDDEN = 6, 16, 48
H200 = chip("h200")
# The rates of a GPU and the kind of the CPU: plans are those of a GPU, and XLA's CPU compiler runs them.
OVERLAPPING = replace(H200, device_kinds=CPU.device_kinds, platform="cpu")
SPECS = {  # how weights, optimizer states and the batch are sharded
    "data parallel": (P(), P(), P("data")),
    "ZeRO-1": (P(), P("data"), P("data")),
    "FSDP": (P("data"), P("data"), P("data")),
    "tensor parallel": (P(None, "model"), P(None, "model"), P()),
    "FSDP × tensor": (P("data", "model"), P("data", "model"), P("data")),
}


@pytest.fixture
def overlapping(monkeypatch):
    """Plan for CPU devices that overlap communication with compute."""
    monkeypatch.setattr(request, "chip_of", lambda kind: OVERLAPPING)


def training_step(scanned, recomputed):
    def layer(x, weights):
        up, down, scale = weights
        return x + jnp.tanh(x * scale @ up) @ down

    block = jax.checkpoint(layer) if recomputed else layer

    def loss(params, x):
        if scanned:
            x, _ = lax.scan(lambda x, weights: (block(x, weights), None), x, params)
        else:
            for number in range(LAYERS):
                x = block(x, [weight[number] for weight in params])
        return (x * x).mean()

    def step(params, means, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        means = [0.9 * mean + 0.1 * grad for mean, grad in zip(means, grads, strict=True)]
        return [p - 0.1 * mean for p, mean in zip(params, means, strict=True)], means, value

    return step


def arguments():
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((LAYERS, *shape)) / 4 for shape in ((MODEL, HIDDEN), (HIDDEN, MODEL), (MODEL,))]
    params = [np.float32(param) for param in params]
    return params, [np.zeros_like(param) for param in params], np.float32(rng.standard_normal((512, MODEL)))


def place(mesh, how):
    weights, states, batch = SPECS[how]

    def put(array, spec, leading=1):
        spec = P(*[None] * leading, *spec[: array.ndim - leading])
        return jax.device_put(array, NamedSharding(mesh, spec))

    params, means, x = arguments()
    return [put(p, weights) for p in params], [put(m, states) for m in means], put(x, batch, 0)


def compiled_step(mesh, how, scanned, recomputed):
    params, means, x = place(mesh, how)
    outs = ([p.sharding for p in params], [m.sharding for m in means], None)
    step = jax.jit(training_step(scanned, recomputed), out_shardings=outs)
    return step.lower(params, means, x).compile(), (params, means, x)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("how", SPECS)
def test_a_scheduled_step_computes_what_one_device_computes(mesh, overlapping, how, scanned, recomputed):
    expected = training_step(scanned, recomputed)(*arguments())
    compiled, placed = compiled_step(mesh, how, scanned, recomputed)
    for got, wanted in zip(jax.tree.leaves(compiled(*placed)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("how", SPECS)
def test_the_schedule_sends_the_same_bytes(mesh, overlapping, how):
    plans = []
    for value in (False, True):
        with jax.config.override("schedule_communication", value):
            plans.append(compiled_step(mesh, how, True, True)[0].plan)
    assert plans[0].wire_bytes == plans[1].wire_bytes > 0
