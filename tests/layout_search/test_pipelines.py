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


def on_one_device(params, batch):
    value, grads = sw.value_and_grad(lambda p: squared_error(stage(p["w"], batch[0]), batch[1]))(params)
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


def test_the_bubble_of_alternatives_is_that_of_their_schedule():
    result = sw.autoshard(step, hardware="h100", count=2, stages=(2,), microbatches=(2, 8))(*types())
    for alternative in result.alternatives:
        ticks = alternative.variant.microbatches + 1
        assert alternative.bubble == pytest.approx(1 / ticks, rel=0.3)  # the rest of the time is outside the loops
    text = str(result)
    assert ", stages=2, microbatches=" in text and all(head in text for head in ("stages", "microbatches", "bubble"))


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
    with pytest.raises(ValueError, match="are for a pipelined step"):
        sw.autoshard(on_one_device, stages=(2,))
    with pytest.raises(ValueError, match="needs an axis 'stage'"):
        sw.autoshard(step, mesh=AbstractMesh((8,), ("data",)))(*types())
    with pytest.raises(ValueError, match="on 8 devices, no number of microbatches divides the rows"):
        sw.autoshard(step, hardware="h100", count=8, microbatches=(5,))(*types())
