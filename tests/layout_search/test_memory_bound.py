"""The least memory of a step is a lower bound of the memory of all its plans."""

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.api.jit import jit
from shardwise.errors import AutoshardError
from shardwise.layout_search.autoshard import autoshard
from shardwise.layout_search.memory_bound import MemoryBound
from shardwise.layout_search.step import trace_step

LAYERS, ROWS, WIDTH = 8, 4096, 64
STACK, WEIGHTS, BATCH = 4 * LAYERS * ROWS * WIDTH, 4 * LAYERS * WIDTH * WIDTH, 4 * ROWS * WIDTH
types = (
    jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), np.float32),
    jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32),
)


def loss(weights, x):
    return jnp.mean(jax.lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, weights)[0] ** 2)


def layered(weights, x):
    return weights - 0.1 * jax.grad(loss)(weights, x)


def accumulated(weights, batches):
    total = jax.lax.scan(lambda total, x: (total + jax.grad(loss)(weights, x), None), jnp.zeros_like(weights), batches)[
        0
    ]
    return weights - 0.1 * total


def plain(weights, x):
    return weights - 0.1 * jax.grad(lambda weights: jnp.mean((x @ weights[0]) ** 2))(weights)


def bound(step, *args, donated=()):
    return MemoryBound.from_program(trace_step(jit(step), args).program, donated)


def test_the_stacks_of_a_scan_are_live_with_the_state():
    found = bound(layered, *types, donated=(0,))
    assert found.inputs == (0, 1)  # the batch is not donated
    assert found.stacked_bytes >= STACK + WEIGHTS  # what the derivatives of all layers need, and the gradients
    assert found.bytes_on(8) == (found.stacked_bytes + WEIGHTS + BATCH) / 8


def test_stacks_of_nested_scans_count():
    weights, batch = types
    batches = jax.ShapeDtypeStruct((2, *batch.shape), np.float32)
    assert bound(accumulated, weights, batches).stacked_bytes == bound(layered, weights, batch).stacked_bytes


def test_a_step_without_a_scan_holds_its_arguments():
    found = bound(plain, *types)
    assert found.bytes_on(2) == (WEIGHTS + BATCH) / 2


@pytest.mark.parametrize("step", [layered, plain])
def test_no_plan_holds_less(step):
    result = autoshard(step, hardware="h100", count=8)(*types)
    found = bound(step, *types)
    for plan in result.alternatives:
        if plan.variant.remat == "none":
            assert found.bytes_with(plan.mesh, plan.layouts) <= plan.peak_bytes


def test_a_variant_that_cannot_fit_is_sampled_only():
    needed = bound(layered, *types).bytes_on(8)
    free = autoshard(layered, hardware="h100", count=8)(*types)
    limited = autoshard(layered, hardware="h100", count=8, memory_limit=int(0.9 * needed))(*types)
    assert limited.remat == "all" and limited.best.fits
    assert 0 < _unchanged(limited) < _unchanged(free)


def test_the_bound_is_reported_without_a_search_if_it_exceeds_the_memory():
    with pytest.raises(
        AutoshardError, match=r"Every plan needs at least 9\.7 MB\.\n.*would fit on 32 devices"
    ) as caught:
        autoshard(layered, hardware="h100", count=1, memory_limit=725_000)(*types)
    assert caught.value.least.mesh.size == 1


def _unchanged(result):
    """Return the number of plans without recomputation."""
    return sum(plan.variant.remat == "none" for plan in result.alternatives)
