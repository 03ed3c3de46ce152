"""MPMD pipelines on virtual devices: losses and gradients of all schedules equal one device's; errors."""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P
from shardwise.errors import StrategyError
from shardwise.execute.launch_hooks import launch_hooks
from shardwise.parallel import mpmd_pipeline, task_schedule
from shardwise.sharding import Mesh, NamedSharding
from tests.parallel.mpmd.language_model import batch, on_one_device, stages_and_params

MICROBATCHES = 4
LAYERS = [2, 1, 3, 1, 1, 2, 1, 1]  # of the stages, as many as a schedule has


def meshes(ranks, shape=(1,), axes=("data",)):
    devices, count = sw.devices(), int(np.prod(shape))
    return [Mesh(np.array(devices[r * count : (r + 1) * count]).reshape(shape), axes) for r in range(ranks)]


def check(train, params, stages):
    tokens, targets = batch()
    loss, gradients = train.value_and_grad(params, tokens, targets)
    on_host = sw.tree_util.tree_map(np.asarray, params)
    expected, expected_gradients = on_one_device(stages, on_host, tokens, targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    sw.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max()),
        gradients,
        expected_gradients,
    )
    return loss, gradients


@contextmanager
def counted_compiles():
    """Count the compilations of programs, by name."""
    counts = Counter()

    def count(launch, runs):
        counts[launch.request.program.name] += not runs

    launch_hooks.add(count)
    try:
        yield counts
    finally:
        launch_hooks.remove(count)


SLOW = [("1f1b", 2), ("gpipe", 3), ("interleaved", 4), ("zb-h1", 4), ("zb-v", 4), ("dualpipe", 2), ("dualpipe", 3)]
SCHEDULES = [("zb-h1", 2), *[pytest.param(*each, marks=pytest.mark.slow) for each in SLOW]]


@pytest.mark.parametrize("name, stage_count", SCHEDULES)
def test_equals_one_device_and_compiles_each_program_once(name, stage_count):
    stages, params = stages_and_params(LAYERS[:stage_count])
    ranks = stage_count // 2 if name in ("interleaved", "zb-v") else stage_count
    train = mpmd_pipeline(stages, meshes(ranks), MICROBATCHES, name)
    with counted_compiles() as compiles:
        check(train, params, stages)
        is_split = name in ("zb-h1", "zb-v", "dualpipe")
        kinds = ("forward", "input_gradient", "weight_gradient") if is_split else ("forward", "backward")
        for stage in range(stage_count):
            for kind in kinds:
                replicas = len(train.schedule.ranks_of_stage[stage])
                assert compiles[f"stage{stage}_{kind}"] == replicas, (stage, kind, compiles)
    with counted_compiles() as compiles:
        check(train, params, stages)
        assert not [program for program, count in compiles.items() if program.startswith("stage") and count]


@pytest.mark.slow
@pytest.mark.parametrize("remat", [True, sw.checkpoint_policies.dots_saveable])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_recomputation(name, remat):
    stages, params = stages_and_params(LAYERS[:2])
    check(mpmd_pipeline(stages, meshes(2), MICROBATCHES, name, remat=remat), params, stages)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_stages_are_sharded_over_their_own_meshes(name):
    """The stages have different mesh shapes and specs; parameters are sharded over one axis, rows over the other."""
    stages, params = stages_and_params(LAYERS[:3])
    devices = np.array(sw.devices())
    grids = [
        Mesh(devices[:4].reshape(2, 2), ("data", "model")),
        Mesh(devices[4:6], ("data",)),
        Mesh(devices[6:8].reshape(1, 2), ("data", "model")),
    ]
    placed = [
        sw.tree_util.tree_map(
            lambda x, mesh=mesh, axis=axis: sw.device_put(x, NamedSharding(mesh, P(*[None] * (x.ndim - 1), axis))), each
        )
        for each, mesh, axis in zip(params, grids, ("model", "data", "model"), strict=True)
    ]
    train = mpmd_pipeline(stages, grids, MICROBATCHES, name, spec=[P("data"), P("data"), P(None, "model")])
    loss, gradients = check(train, placed, stages)
    assert loss.sharding.num_devices == 8 and loss.is_fully_replicated
    assert sw.tree_util.tree_map(lambda x: x.sharding, gradients) == sw.tree_util.tree_map(lambda x: x.sharding, placed)


def test_activations_may_be_pytrees_with_integers():
    def first(w, rows):
        return {"x": rows["x"] * w, "position": rows["position"]}

    def last(w, value):
        return (value["x"] * w * value["position"]).sum() / value["x"].size

    x, position = np.arange(8.0, dtype=np.float32), np.arange(8, dtype=np.int32)
    weights = [np.float32(2.0), np.float32(3.0)]
    train = mpmd_pipeline([first, last], meshes(2), 4, "zb-h1")
    loss, gradients = train.value_and_grad(weights, {"x": x, "position": position})
    total = (x * position).mean()
    np.testing.assert_allclose(loss, 6 * total, rtol=1e-6)
    np.testing.assert_allclose(gradients, [3 * total, 2 * total], rtol=1e-6)


@pytest.mark.parametrize("name", ["1f1b", "dualpipe"])
def test_auxiliary_results_are_stacked_by_microbatch(name):
    def last(w, x, y):
        product = x @ w
        return ((product - y) ** 2).mean(), {"product": product, "count": (y > 0).sum()}

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 16, 3)).astype(np.float32)
    weights = list(rng.normal(size=(2, 3, 3)).astype(np.float32))
    train = mpmd_pipeline([lambda w, x: jnp.tanh(x @ w), last], meshes(2), 4, name, has_aux=True)
    (loss, aux), gradients = train.value_and_grad(weights, x, y)

    def whole(weights):
        return last(weights[1], jnp.tanh(x @ weights[0]), y)[0]

    expected, expected_gradients = sw.value_and_grad(whole)(weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    sw.tree_util.tree_map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), gradients, expected_gradients)
    hidden = np.tanh(x @ weights[0])
    for index in range(4):
        rows = slice(index, None, 4)
        np.testing.assert_allclose(aux["product"][index], hidden[rows] @ weights[1], rtol=1e-4, atol=1e-6)
        assert aux["count"][index] == (y[rows] > 0).sum()
    assert aux["product"].sharding.mesh == meshes(2)[1]


@pytest.mark.parametrize("aux", [None, {}, {"none": None}])
def test_auxiliary_results_may_be_empty(aux):
    stages, params = stages_and_params([1, 1])
    last, (tokens, targets) = stages[1], batch()
    train = mpmd_pipeline([stages[0], lambda *args: (last(*args), aux)], meshes(2), MICROBATCHES, has_aux=True)
    (loss, result), _ = train.value_and_grad(params, tokens, targets)
    expected, _ = mpmd_pipeline(stages, meshes(2), MICROBATCHES).value_and_grad(params, tokens, targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert result == aux


def test_errors():
    stages, params = stages_and_params([1, 1])
    train = mpmd_pipeline(stages, meshes(2), MICROBATCHES)

    def message(call, *args, **options):
        with pytest.raises(StrategyError) as raised:
            call(*args, **options)
        return str(raised.value)

    assert "has 3 stages on 3 ranks, but there are 2 stages and 3 meshes" in message(
        mpmd_pipeline, stages, meshes(3), MICROBATCHES
    )
    assert "share the device" in message(mpmd_pipeline, stages, meshes(1) * 2, MICROBATCHES)
    assert "has 8 microbatches, not 4" in message(mpmd_pipeline, stages, meshes(2), 4, task_schedule("1f1b", 2, 8))
    assert "3 specs for 2 meshes" in message(mpmd_pipeline, stages, meshes(2), 4, spec=[P()] * 3)
    assert "stages must be a sequence of functions" in message(mpmd_pipeline, [], meshes(2), 4)
    assert "1 pytrees of parameters for 2 stages" in message(train.value_and_grad, params[:1], *batch())
    tokens, targets = batch()
    assert "not divisible into 4 microbatches" in message(train.value_and_grad, params, tokens[:-1], targets)
    no_loss = mpmd_pipeline([stages[0], lambda params, x: x], meshes(2), MICROBATCHES)
    assert "must return a scalar loss" in message(no_loss.value_and_grad, params, tokens)
    no_pair = mpmd_pipeline([stages[0], lambda params, x: x.mean()], meshes(2), MICROBATCHES, has_aux=True)
    assert "with has_aux=True the last stage must return a pair (loss, aux)" in message(
        no_pair.value_and_grad, params, tokens
    )
    explicit = [sw.make_mesh((1,), ("data",), sw.sharding.AxisType.Explicit, devices=[sw.devices()[0]])]
    assert "has Explicit axes: use meshes with Auto axes" in message(mpmd_pipeline, stages[:1], explicit, 4)
    assert "cannot be a part of one: call it outside of `jit`" in message(
        sw.jit(lambda params: train.value_and_grad(params, tokens, targets)[0]), params
    )
    assert jnp.isfinite(train.value_and_grad(params, tokens, targets)[0])
