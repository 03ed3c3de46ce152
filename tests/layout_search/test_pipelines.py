"""autoshard of pipelined steps: stages, microbatches and the mesh, against one device and against `simulate`."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import AutoshardError
from shardwise.parallel import pipeline
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

LAYERS, WIDTH, ROWS = 4, 16, 32


def stage(weights, x):
    return sw.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights)[0]


def squared_error(y, targets):
    return jnp.mean((y - targets) ** 2)


def step(params, batch, *, mesh, microbatches):
    loss = pipeline(stage, microbatches, "stage", "1f1b", mesh=mesh).with_loss(squared_error)
    stages = mesh.shape["stage"]

    def mean_loss(params):
        return loss(params["w"].reshape(stages, -1, WIDTH, WIDTH), *batch)

    value, grads = sw.value_and_grad(mean_loss)(params)
    return sw.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def interleaved_step(params, batch, *, mesh, microbatches, chunks):
    """A device has adjacent layers of the stack; with chunks, they are not adjacent in the model."""
    schedule = "interleaved" if chunks > 1 else "1f1b"
    loss = pipeline(stage, microbatches, "stage", schedule, mesh=mesh, chunks=chunks).with_loss(squared_error)

    def mean_loss(params):
        w = params["w"].reshape(mesh.shape["stage"], chunks, -1, WIDTH, WIDTH).swapaxes(0, 1)
        return loss(w[0] if chunks == 1 else w, *batch)

    value, grads = sw.value_and_grad(mean_loss)(params)
    return sw.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def on_one_device(params, batch, order=range(LAYERS)):
    def loss(params):
        return squared_error(stage(params["w"][np.array(order)], batch[0]), batch[1])

    value, grads = sw.value_and_grad(loss)(params)
    return sw.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) * 0.2}
    return params, tuple(rng.normal(size=(2, ROWS, WIDTH)).astype(np.float32))


def types():
    return sw.tree.map(lambda x: sw.ShapeDtypeStruct(x.shape, x.dtype), arguments())


def test_a_pipeline_equals_one_device():
    result = sw.autoshard(step, devices=sw.devices()[:4], stages=(2,), microbatches=(4, 8))(*types())
    assert (result.stages, result.mesh.shape["stage"]) == (2, 2) and result.microbatches in (4, 8)
    assert result.in_shardings[0]["w"].spec[0] == "stage" and result.in_shardings[1][0].spec[0] == "data"
    assert {a.variant.microbatches for a in result.alternatives} == {4, 8}
    assert result.plan.seconds == pytest.approx(result.seconds)
    for x, expected in zip(
        sw.tree.leaves(result.jit()(*arguments())), sw.tree.leaves(sw.jit(on_one_device)(*arguments())), strict=True
    ):
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_bubble_of_alternatives_is_that_of_their_schedule():
    result = sw.autoshard(step, hardware="h100", count=2, stages=(2,), microbatches=(2, 8))(*types())
    for alternative in result.alternatives:
        ticks = alternative.variant.microbatches + 1
        assert alternative.bubble == pytest.approx(1 / ticks, rel=0.3)  # the rest of the time is outside the loops
    text = str(result)
    assert ", stages=2, microbatches=" in text and all(head in text for head in ("stages", "microbatches", "bubble"))


@pytest.mark.slow
def test_an_interleaved_pipeline_equals_one_device():
    mesh = sw.make_mesh((2,), ("stage",), devices=sw.devices()[:2])
    result = sw.autoshard(interleaved_step, mesh=mesh, microbatches=(2, 4))(*types())
    shown = {(a.variant.chunks, a.schedule) for a in result.alternatives}
    assert shown == {(1, "1f1b"), (2, "interleaved")}  # there are 2 layers on each device
    assert "schedule" in str(result) and "interleaved × 2" in str(result)
    assert result.seconds == min(a.seconds for a in result.alternatives if not a.is_estimated)
    result = sw.autoshard(interleaved_step, mesh=mesh, microbatches=(4,), chunks=(2,))(*types())
    assert (result.stages, result.microbatches, result.chunks) == (2, 4, 2)
    assert result.in_shardings[0]["w"].spec[0] == "stage"
    (idle,) = result.plan.timeline.idle
    assert idle.share == 1 / (2 * 4 + 1)  # (p − 1)/(v·m + p − 1)
    assert idle.idle_seconds / result.plan.seconds == pytest.approx(result.best.bubble)
    expected = sw.jit(lambda params, batch: on_one_device(params, batch, (0, 2, 1, 3)))(*arguments())
    for x, y in zip(sw.tree.leaves(result.jit()(*arguments())), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_estimates_are_near_the_plans():
    """An alternative that is estimated from the plan of another one takes about as long with its own plan."""
    mesh = AbstractMesh((2,), ("stage",))
    result = sw.autoshard(step, hardware="h100", mesh=mesh, microbatches=(2, 8, 16))(*types())
    estimates = [a for a in result.alternatives if a.is_estimated]
    assert estimates and not result.best.is_estimated and "~" in str(result)
    for estimate in estimates:
        params, batch = types()
        params["w"] = params["w"].update(sharding=NamedSharding(mesh, P("stage")))
        batch = sw.tree.map(lambda x: x.update(sharding=NamedSharding(mesh, P())), batch)
        bound = partial(step, mesh=mesh, microbatches=estimate.variant.microbatches)
        assert sw.simulate(bound, hardware="h100")(params, batch).seconds == pytest.approx(estimate.seconds, rel=0.05)


@pytest.mark.slow
def test_stages_divide_the_layers_and_the_best_is_the_fastest():
    result = sw.autoshard(step, hardware="h100", count=16)(*types())
    stages = {alternative.variant.stages for alternative in result.alternatives}
    assert {1, 2, 4} == stages  # of 4 layers
    mesh, microbatches = result.best.mesh, result.microbatches
    args = sw.tree.map(lambda x, s: x.update(sharding=s), types(), result.in_shardings)
    bound = partial(step, mesh=mesh, microbatches=microbatches)
    assert sw.simulate(bound, hardware="h100")(*args).seconds == pytest.approx(result.seconds)


@pytest.mark.slow
def test_a_pipeline_that_does_not_fit_is_an_error_with_a_larger_one():
    with pytest.raises(AutoshardError, match=r"no plan of `step` fits in 6\.0 kB") as caught:
        sw.autoshard(step, hardware="h100", count=2, memory_limit=6_000)(*types())
    error = caught.value
    assert error.least.peak_bytes > 6_000
    assert error.larger is None or error.larger.peak_bytes <= 6_000


@pytest.mark.slow
def test_a_pipeline_fits_in_less_memory():
    free = sw.autoshard(step, hardware="h100", count=4, stages=(1, 2))(*types())
    limit = int(0.8 * free.peak_bytes)
    limited = sw.autoshard(step, hardware="h100", count=4, stages=(1, 2), memory_limit=limit)(*types())
    assert limited.peak_bytes <= limit
    assert limited.plan.peak_bytes == pytest.approx(limited.peak_bytes, rel=0.01)  # it counts tables of schedules once


@pytest.mark.slow
def test_a_given_mesh_is_kept():
    mesh = sw.make_mesh((4, 2), ("stage", "data"))
    result = sw.autoshard(step, mesh=mesh)(*types())
    assert result.mesh is mesh and result.stages == 4
    pinned = NamedSharding(mesh, P("stage", "data"))
    params, batch = types()
    params["w"] = sw.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32, sharding=pinned)
    assert sw.autoshard(step)(params, batch).in_shardings[0]["w"] == pinned


def test_errors():
    with pytest.raises(ValueError, match=r"\['rate'\].*bind others with functools.partial"):
        sw.autoshard(lambda params, *, rate: params)
    with pytest.raises(ValueError, match="`chunks` is for a pipelined step, which has the keyword parameters"):
        sw.autoshard(on_one_device, chunks=(2,))
    with pytest.raises(ValueError, match="`chunks` is for a pipelined step that has a keyword parameter"):
        sw.autoshard(step, chunks=(2,))
    with pytest.raises(
        ValueError, match=r"`microbatches` are the positive numbers to try, such as \(2, 4\), not \(0,\)"
    ):
        sw.autoshard(step, microbatches=(0,))
    with pytest.raises(ValueError, match="needs an axis 'stage'"):
        sw.autoshard(step, mesh=AbstractMesh((8,), ("data",)))(*types())
    with pytest.raises(ValueError, match=r"none of the numbers of stages, \(3,\), divides the 8 devices"):
        sw.autoshard(step, hardware="h100", count=8, stages=(3,))(*types())
    with pytest.raises(ValueError, match="on 8 devices, no number of microbatches divides the rows"):
        sw.autoshard(step, hardware="h100", count=8, microbatches=(5,))(*types())
