"""The plans of pipelines: collectives and their bytes, memory per device, idle time."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P
from shardwise.parallel import pipeline
from shardwise.sharding import NamedSharding

DEVICES, WIDTH, ROWS = 4, 32, 8  # rows of one microbatch
ACTIVATION = ROWS * WIDTH * 4  # bytes of one microbatch
SCHEDULES = [("1f1b", 8, 1), ("gpipe", 8, 1), ("interleaved", 8, 2)]
every_schedule = pytest.mark.parametrize(("schedule", "microbatches", "chunks"), SCHEDULES)


def stage(w, x):
    return jnp.tanh(x @ w)


def embed(tokens, table):
    return table[tokens]


def loss(outputs, targets, table):
    return ((outputs - table[targets]) ** 2).mean()


@pytest.fixture(scope="module")
def line():
    return sw.make_mesh((DEVICES,), ("stage",), devices=sw.devices()[:DEVICES])


def arguments(mesh, microbatches, chunks):
    """Return the types of parameters, a batch of activations, tokens and an embedding."""
    leading, spec = ((chunks, DEVICES), P(None, "stage")) if chunks > 1 else ((DEVICES,), P("stage"))

    def struct(shape, spec, dtype=np.float32):
        return sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    rows = ROWS * microbatches
    return (
        struct((*leading, WIDTH, WIDTH), spec),
        struct((rows, WIDTH), P()),
        struct((rows,), P(), np.int32),
        struct((16, WIDTH), P()),
    )


def training_step(mesh, schedule, microbatches, chunks, **options):
    """Return the lowered loss and gradients of the parameters and the embedding."""
    run = pipeline(stage, microbatches, "stage", schedule, mesh=mesh, chunks=chunks, **options)
    params, _, tokens, table = arguments(mesh, microbatches, chunks)
    gradients = sw.value_and_grad(run.with_loss(loss, embed), argnums=(0, 3))
    return sw.jit(gradients).lower(params, tokens, tokens, table)


@every_schedule
def test_a_tick_sends_one_microbatch(line, schedule, microbatches, chunks):
    run = pipeline(stage, microbatches, "stage", schedule, mesh=line, chunks=chunks)
    params, x, *_ = arguments(line, microbatches, chunks)
    plan = sw.jit(run).lower(params, x).plan
    ticks = chunks * microbatches + DEVICES - 1
    (permute,) = (row for row in plan.collectives if row.kind == "ppermute")
    assert (permute.times, permute.type, permute.sent) == (ticks, f"f32[{ROWS},{WIDTH}]", ticks * ACTIVATION)
    (total,) = (row for row in plan.collectives if row.kind != "ppermute")  # the results are on the last device
    assert (total.kind, total.times, total.axes) == ("all_reduce", 1, ("stage",))


@every_schedule
def test_a_training_step_sends_activations_and_their_cotangents(line, schedule, microbatches, chunks):
    plan = training_step(line, schedule, microbatches, chunks).plan
    permutes = [row for row in plan.collectives if row.kind == "ppermute"]
    ticks = 2 * (chunks * microbatches + DEVICES - 1)
    assert sum(row.times for row in permutes) == ticks
    assert sum(row.sent for row in permutes) == ticks * ACTIVATION
    assert {row.type for row in permutes} == {f"f32[{ROWS},{WIDTH}]"}
    others = [row for row in plan.collectives if row.kind != "ppermute"]
    assert {row.kind for row in others} == {"all_reduce"} and {row.times for row in others} == {1}


def floats_at_peak(lowered):
    """Return the types of the floating-point arrays that a device holds at the peak of the plan."""
    return sorted(held.type for held in lowered.plan.timeline.alive if held.type.startswith("f32"))


def temporary_bytes(lowered):
    """Return the temporary memory per device that XLA needs."""
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2)])
@pytest.mark.table(default=1)
def test_memory_does_not_grow_with_microbatches(line, schedule, chunks):
    """Of the arrays that there are for every microbatch, devices hold only tokens, and the schedule."""
    few, many = (training_step(line, schedule, count, chunks) for count in (8, 24))
    assert floats_at_peak(few) == floats_at_peak(many)
    assert many.plan.peak_bytes - few.plan.peak_bytes < 16 * ACTIVATION / 2
    assert temporary_bytes(many) - temporary_bytes(few) < 16 * ACTIVATION / 2


def test_memory_of_gpipe_grows_with_microbatches(line):
    few, many = (training_step(line, "gpipe", count, 1) for count in (8, 24))
    assert many.plan.peak_bytes - few.plan.peak_bytes >= 16 * ACTIVATION
    assert temporary_bytes(many) - temporary_bytes(few) >= 16 * ACTIVATION


def test_loops_carry_the_stored_inputs(line):
    """The state of the loops has as many microbatches as the schedule stores."""
    for schedule, chunks, stored in (("1f1b", 1, 2 * DEVICES - 1), ("interleaved", 2, 3 * DEVICES - 1)):
        plan = training_step(line, schedule, 16, chunks).plan
        kept = [row for row in plan.values if row.type.startswith("f32[") and row.type.endswith(f",{ROWS},{WIDTH}]")]
        counts = {int(row.type[4:].split(",")[0]) for row in kept}
        assert max(counts) == stored


@pytest.mark.table(default=1)
@every_schedule
def test_timeline_shows_the_bubble(line, schedule, microbatches, chunks):
    plan = training_step(line, schedule, microbatches, chunks).plan
    ticks = chunks * microbatches + DEVICES - 1
    (row,) = plan.timeline.idle
    assert (row.what, row.axis) == (f"{schedule} pipeline", "stage")
    assert (row.idle_ticks, row.ticks) == (DEVICES - 1, ticks)
    assert row.share == pytest.approx((DEVICES - 1) / ticks)
    assert sum(step.idle for step in plan.timeline.steps) == pytest.approx(row.idle_seconds)
    products = [step for step in plan.timeline.steps if step.op == "dot"]
    assert products and all(step.idle == pytest.approx(step.seconds * row.share) for step in products)
    line_of_text = next(text for text in str(plan).splitlines() if " idle " in text)
    assert f"{schedule} pipeline along 'stage': each device is idle in {DEVICES - 1} of {ticks} ticks" in line_of_text
    page = plan.to_html()
    assert "idle, on each device:" in page and 'class="idle"' in page
