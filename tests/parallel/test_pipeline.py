"""Pipelines: values and derivatives are those of the stages in sequence on one device, for every schedule."""

from functools import cache, partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, lax
from shardwise.parallel import pipeline
from shardwise.sharding import NamedSharding

DEVICES, WIDTH, ROWS = 4, 8, 16
SCHEDULES = [("1f1b", 8, 1), ("gpipe", 4, 1), ("interleaved", 8, 2)]
every_schedule = pytest.mark.parametrize(("schedule", "microbatches", "chunks"), SCHEDULES)
first_schedule = pytest.mark.table(default=1)  # the others are slow


def stage(params, x):
    return x + jnp.tanh(x @ params["w"] + params["b"])


@partial(sw.jit, static_argnums=(2, 3))
def in_sequence(params, x, chunks=1, stage=stage):
    """Apply all stages in the order of their numbers."""
    leading = 2 if chunks > 1 else 1
    params = sw.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[leading:]), params)
    for number in range(DEVICES * chunks):
        x = stage(sw.tree.map(lambda leaf, number=number: leaf[number], params), x)
    return x


def squared_error(outputs, targets, scale):
    return ((outputs - targets) ** 2).mean() * scale


def arguments(chunks=1, seed=0):
    rng = np.random.default_rng(seed)
    leading = (chunks, DEVICES) if chunks > 1 else (DEVICES,)

    def normal(*shape, scale=1.0):
        return (rng.normal(size=shape) * scale).astype(np.float32)

    params = {"w": normal(*leading, WIDTH, WIDTH, scale=0.4), "b": normal(*leading, WIDTH)}
    return params, normal(ROWS, WIDTH), normal(ROWS, WIDTH), np.float32(1.5)


def stage_spec(chunks):
    return P(None, "stage") if chunks > 1 else P("stage")


def placed(mesh, chunks, *rows):
    """Return the arguments on the mesh: stages over `stage`, rows over the axes `rows`."""
    params, *data, scale = arguments(chunks)
    data = [sw.device_put(x, NamedSharding(mesh, P(*rows))) for x in data]
    return sw.device_put(params, NamedSharding(mesh, stage_spec(chunks))), *data, scale


@cache
def expected_gradients(chunks, stage=stage):
    def loss(params, x, y, scale):
        return squared_error(in_sequence(params, x, chunks, stage), y, scale)

    return sw.jit(sw.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*arguments(chunks))


def assert_close(actual, expected, rtol=2e-5, atol=2e-6):
    assert sw.tree.structure(actual) == sw.tree.structure(expected)
    for a, e in zip(sw.tree.leaves(actual), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=atol)


@pytest.fixture(scope="module")
def line():
    return sw.make_mesh((DEVICES,), ("stage",), devices=sw.devices()[:DEVICES])


@pytest.fixture(scope="module")
def grid():
    return sw.make_mesh((DEVICES, 2), ("stage", "data"))


@first_schedule
@every_schedule
def test_outputs_and_gradients_from_jit(grid, schedule, microbatches, chunks):
    run = pipeline(stage, microbatches, "stage", schedule, mesh=grid, chunks=chunks)
    params, x, y, scale = placed(grid, chunks, "data")
    outputs = sw.jit(run)(params, x)
    assert_close(outputs, in_sequence(*arguments(chunks)[:2], chunks))
    assert outputs.sharding.spec == P("data")

    def loss(params, x, y, scale):
        return squared_error(run(params, x), y, scale)

    value, gradients = sw.jit(sw.value_and_grad(loss, argnums=(0, 1, 2, 3)))(params, x, y, scale)
    assert_close((value, gradients), expected_gradients(chunks))
    assert gradients[0]["w"].sharding == params["w"].sharding


@pytest.mark.table(default=1)
@every_schedule
def test_loss_inside_the_pipeline(grid, schedule, microbatches, chunks):
    mean_loss = pipeline(stage, microbatches, "stage", schedule, mesh=grid, chunks=chunks).with_loss(squared_error)
    args = placed(grid, chunks, "data")
    value, gradients = expected_gradients(chunks)
    assert_close(sw.jit(mean_loss)(*args), value)
    assert_close(sw.jit(sw.value_and_grad(mean_loss, argnums=(0, 1, 2, 3)))(*args), (value, gradients))


@first_schedule
@every_schedule
def test_in_a_shard_map_over_the_axis(line, schedule, microbatches, chunks):
    run = pipeline(stage, microbatches, "stage", schedule, chunks=chunks)
    params, x, y, scale = placed(line, chunks)

    def loss(params, x, y, scale):
        return squared_error(run(params, x), y, scale)

    specs = (stage_spec(chunks), P(), P(), P())
    outside = sw.shard_map(loss, mesh=line, in_specs=specs, out_specs=P())
    inside = sw.shard_map(
        sw.value_and_grad(loss, argnums=(0, 1, 2, 3)), mesh=line, in_specs=specs, out_specs=(P(), specs)
    )
    expected = expected_gradients(chunks)
    assert_close(sw.jit(sw.value_and_grad(outside, argnums=(0, 1, 2, 3)))(params, x, y, scale), expected)
    assert_close(sw.jit(inside)(params, x, y, scale), expected)


@first_schedule
@every_schedule
def test_loss_in_a_shard_map_over_all_axes(grid, schedule, microbatches, chunks):
    """The rows are sharded by hand: gradients of parameters are summed over `data` once, after the loops."""
    mean_loss = pipeline(stage, 4, "stage", schedule, chunks=chunks).with_loss(squared_error)  # of 8 rows per device

    def mean_of_all(params, x, y, scale):
        return lax.pmean(mean_loss(params, x, y, scale), "data")

    specs = (stage_spec(chunks), P("data"), P("data"), P())
    step = sw.value_and_grad(mean_of_all, argnums=(0, 3))
    step = sw.shard_map(step, mesh=grid, in_specs=specs, out_specs=(P(), (specs[0], P())))
    args = placed(grid, chunks, "data")
    value, (params, _, _, scale) = expected_gradients(chunks)
    assert_close(sw.jit(step)(*args), (value, (params, scale)))
    reductions = [row for row in sw.jit(step).lower(*args).plan.collectives if row.kind == "all_reduce"]
    assert reductions and all(row.times == 1 for row in reductions)


def tokens_and_targets(rows, seed=1):
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, 12, size=(2, rows)).astype(np.int32)
    shared = {"table": rng.normal(size=(12, WIDTH)).astype(np.float32), "scale": np.float32(0.5)}
    return tokens, targets, shared


def embed(tokens, shared):
    return shared["table"][tokens] * shared["scale"]


def cross_entropy(outputs, targets, shared):
    """The classifier's weights are those of the embedding."""
    logits = outputs @ shared["table"].T
    chosen = jnp.take_along_axis(logits, targets[:, None], 1)[:, 0]
    return (jnp.log(jnp.exp(logits).sum(-1)) - chosen).mean()


@first_schedule
@every_schedule
def test_embedding_before_the_first_stage(grid, schedule, microbatches, chunks):
    run = pipeline(stage, microbatches, "stage", schedule, mesh=grid, chunks=chunks)
    params, *_ = placed(grid, chunks)
    tokens, targets, shared = tokens_and_targets(ROWS)

    def loss(params, tokens, targets, shared):
        return cross_entropy(in_sequence(params, embed(tokens, shared), chunks), targets, shared)

    expected = sw.jit(sw.value_and_grad(loss, argnums=(0, 3)))(arguments(chunks)[0], tokens, targets, shared)
    mean_loss = run.with_loss(cross_entropy, embed)
    assert_close(sw.jit(mean_loss)(params, tokens, targets, shared), expected[0])
    assert_close(sw.jit(sw.value_and_grad(mean_loss, argnums=(0, 3)))(params, tokens, targets, shared), expected)


@first_schedule
@every_schedule
def test_idle_devices_do_not_spoil_gradients(line, schedule, microbatches, chunks):
    """The derivative of this stage is NaN at zero, on which idle devices compute."""

    def normalize(params, x):
        return stage(params, x) / jnp.sqrt((x**2).sum(-1, keepdims=True))

    run = pipeline(normalize, microbatches, "stage", schedule, mesh=line, chunks=chunks)
    expected = expected_gradients(chunks, stage=normalize)
    args = placed(line, chunks)

    def loss(params, x, y, scale):
        return squared_error(run(params, x), y, scale)

    assert_close(sw.jit(sw.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*args), expected, 1e-4, 1e-5)
    mean_loss = run.with_loss(squared_error)
    assert_close(sw.jit(sw.value_and_grad(mean_loss, argnums=(0, 1, 2, 3)))(*args), expected, 1e-4, 1e-5)


@pytest.mark.slow
@every_schedule
def test_activations_may_be_trees_with_integers(line, schedule, microbatches, chunks):
    def move(params, x):
        h = stage(params, x["h"]) + 0.1 * x["position"][:, None]
        return {"h": h, "position": x["position"], "odd": ~x["odd"]}

    run = pipeline(move, microbatches, "stage", schedule, mesh=line, chunks=chunks)
    params, h, _, _ = placed(line, chunks)
    x = {"h": h, "position": np.arange(ROWS, dtype=np.int32), "odd": np.arange(ROWS) % 2 == 1}
    expected = in_sequence(arguments(chunks)[0], x, chunks, move)
    assert_close(sw.jit(run)(params, x), expected)

    def loss(run):
        return lambda params, h: (run(params, {**x, "h": h})["h"] ** 2).sum()

    in_order = loss(lambda params, x: in_sequence(params, x, chunks, move))
    gradients = sw.jit(sw.grad(loss(run), argnums=(0, 1)))(params, h)
    assert_close(gradients, sw.jit(sw.grad(in_order, argnums=(0, 1)))(*arguments(chunks)[:2]), 1e-4, 1e-4)


@first_schedule
@pytest.mark.parametrize(("schedule", "microbatches"), [("1f1b", 2), ("1f1b", 1), ("gpipe", 1)])
def test_fewer_microbatches_than_stages(line, schedule, microbatches):
    mean_loss = pipeline(stage, microbatches, "stage", schedule, mesh=line).with_loss(squared_error)
    actual = sw.jit(sw.value_and_grad(mean_loss, argnums=(0, 1, 2, 3)))(*placed(line, 1))
    assert_close(actual, expected_gradients(1))


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "chunks"), [("interleaved", 4), ("gpipe", 1), ("1f1b", 1)])
def test_one_device(schedule, chunks):
    """All stages are chunks of the only device."""
    mesh = sw.make_mesh((1,), ("stage",), devices=sw.devices()[:1])
    rng = np.random.default_rng(0)
    shape = (chunks, 1, WIDTH, WIDTH) if chunks > 1 else (1, WIDTH, WIDTH)
    w, x = rng.normal(size=shape).astype(np.float32) * 0.4, arguments()[1]

    def loss(w, x):
        for index in range(chunks):
            x = jnp.tanh(x @ w.reshape(chunks, WIDTH, WIDTH)[index])
        return (x**2).mean()

    run = pipeline(lambda w, x: jnp.tanh(x @ w), 4, "stage", schedule, mesh=mesh, chunks=chunks)
    actual = sw.jit(sw.value_and_grad(lambda w, x: (run(w, x) ** 2).mean()))(w, x)
    assert_close(actual, sw.jit(sw.value_and_grad(loss))(w, x))


@pytest.mark.slow
def test_second_derivatives_and_forward_mode_of_gpipe(line):
    run = pipeline(stage, 4, "stage", mesh=line, remat=False)
    params, x, *_ = placed(line, 1)

    def loss(run):
        return lambda x: (run(params, x) ** 2).mean()

    one, other = loss(run), loss(in_sequence)
    tangent = np.ones_like(x)
    assert_close(
        sw.jit(lambda x: sw.jvp(one, (x,), (tangent,)))(x), sw.jit(lambda x: sw.jvp(other, (x,), (tangent,)))(x)
    )
    product = [sw.jit(lambda x, f=f: sw.jvp(sw.grad(f), (x,), (tangent,))[1])(x) for f in (one, other)]
    assert_close(*product, rtol=1e-4, atol=1e-5)


@first_schedule
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_data_tensor_and_fsdp_parallel_stages(schedule):
    """Along the other mesh axes the planner shards the stages: Megatron's MLP over `model`, FSDP over `data`."""
    mesh = sw.make_mesh((2, 2, 2), ("stage", "data", "model"))
    rng = np.random.default_rng(0)
    params = {
        "up": rng.normal(size=(2, 16, 64)).astype(np.float32) * 0.2,
        "down": rng.normal(size=(2, 64, 16)).astype(np.float32) * 0.2,
    }
    x, y = rng.normal(size=(2, 32, 16)).astype(np.float32)
    specs = {"up": P("stage", "data", "model"), "down": P("stage", "model", "data")}

    def mlp(params, x):
        return x + jnp.tanh(x @ params["up"]) @ params["down"]

    def loss(params, x, y):
        for number in range(2):
            x = mlp(sw.tree.map(lambda leaf, number=number: leaf[number], params), x)
        return ((x - y) ** 2).mean()

    mean_loss = pipeline(mlp, 4, "stage", schedule, mesh=mesh).with_loss(lambda out, y: ((out - y) ** 2).mean())
    placed = {name: sw.device_put(params[name], NamedSharding(mesh, spec)) for name, spec in specs.items()}
    rows = [sw.device_put(array, NamedSharding(mesh, P("data"))) for array in (x, y)]
    value, gradients = sw.jit(sw.value_and_grad(mean_loss))(placed, *rows)
    assert_close((value, gradients), sw.jit(sw.value_and_grad(loss))(params, x, y))
    assert {name: gradients[name].sharding.spec for name in specs} == specs


@pytest.mark.slow
def test_explicit_axes_are_auto_inside_auto_axes():
    mesh = sw.make_mesh((DEVICES, 2), ("stage", "data"), axis_types=(sw.sharding.AxisType.Explicit,) * 2)
    with sw.set_mesh(mesh):
        mean_loss = pipeline(stage, 8, "stage", "1f1b").with_loss(squared_error)
        step = sw.value_and_grad(sw.sharding.auto_axes(mean_loss, out_sharding=P()), argnums=(0, 1))
        value, gradients = sw.jit(step)(*placed(mesh, 1, "data"))
    expected, (params, x, *_) = expected_gradients(1)
    assert_close((value, gradients), (expected, (params, x)))
