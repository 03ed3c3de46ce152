"""simulate of pipelines: idle time by the formula of each schedule, and time that grows with the ticks."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

BF16 = np.dtype(jnp.bfloat16)
DEVICES, WIDTH, ROWS = 4, 2048, 2048


def stage(w, x):
    return jnp.tanh(x @ w)


def simulate_step(schedule, microbatches, chunks=1):
    mesh = AbstractMesh((DEVICES,), ("stage",))
    lead, spec = ((chunks, DEVICES), P(None, "stage")) if chunks > 1 else ((DEVICES,), P("stage"))
    pipeline = sw.parallel.pipeline(stage, microbatches, "stage", schedule, mesh=mesh, chunks=chunks)
    loss = pipeline.with_loss(lambda y, targets: jnp.mean((y - targets).astype(jnp.float32) ** 2))
    weights = sw.ShapeDtypeStruct((*lead, WIDTH, WIDTH), BF16, sharding=NamedSharding(mesh, spec))
    rows = sw.ShapeDtypeStruct((microbatches * ROWS, WIDTH), BF16, sharding=NamedSharding(mesh, P()))
    return sw.simulate(sw.grad(loss), hardware="h100", overlap=False)(weights, rows, rows)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_the_bubble_is_that_of_the_formula(schedule, chunks):
    few, many = (simulate_step(schedule, count, chunks) for count in (DEVICES, 4 * DEVICES))
    ticks = [chunks * count + DEVICES - 1 for count in (DEVICES, 4 * DEVICES)]
    for run, count in zip((few, many), ticks, strict=True):
        (row,) = run.plan.timeline.idle
        assert row.share == pytest.approx((DEVICES - 1) / count)
        compute = sum(run.bounds[name] for name in ("products", "memory", "idle"))
        assert run.bounds["idle"] / compute == pytest.approx(row.share, rel=0.2)  # the rest is outside the loops
        assert f"{100 * run.bounds['idle'] / run.seconds:.0f}% idle" in str(run)
    assert many.seconds / few.seconds == pytest.approx(ticks[1] / ticks[0], rel=0.12)
    # No product of an idle tick is work: four times the microbatches have four times the flops.
    assert many.flops == pytest.approx(4 * few.flops)
    assert many.utilization > few.utilization


def test_the_flops_are_those_of_all_microbatches():
    run = simulate_step("gpipe", 8)
    per_microbatch = 2 * ROWS * WIDTH**2
    assert run.flops == pytest.approx(8 * 4 * per_microbatch)  # forward, recomputation, and two products backward
