"""autoshard against the layouts that people write, against one device, and against brute force."""

import math
import pickle
from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from benchmarks.models import MODELS, Model, training_step
from shardwise import strategies
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import AutoshardError
from shardwise.layout_search.search import argument_classes
from shardwise.layout_search.step import trace_step
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.explain import expert_layer

DEFAULT = "mlp"


def structs(tree, sharding=None):
    return sw.tree.map(lambda x: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def baselines(model: Model):
    """Yield the name of each layout that people write, with arguments in that layout."""
    params, batch = model.state()["params"], model.examples()
    one, two = sw.make_mesh((8,), ("data",)), sw.make_mesh((4, 2), ("data", "model"))
    tensor_mesh = sw.make_mesh((1, 8), ("data", "model"))
    replicated, sharded = strategies.data_parallel(params, one), strategies.fsdp(params, one, "data")
    tensor = strategies.tensor_parallel(params, tensor_mesh, model.expert, allow_uneven=True)
    expert = strategies.tensor_parallel(params, two, model.expert)
    both = strategies.fsdp(params, two, "data", base=expert)
    for name, mesh, of_params, of_momentum in (
        ("data parallel", one, replicated, replicated),
        ("ZeRO 1", one, replicated, sharded),
        ("FSDP", one, sharded, sharded),
        ("tensor parallel", tensor_mesh, tensor, tensor),
        ("FSDP × tensor parallel", two, both, both),
        ("expert", two, expert, expert),
    ):
        shardings = {"params": of_params, "momentum": of_momentum}
        state = sw.tree.map(
            lambda x, s: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            {"params": params, "momentum": params},
            shardings,
        )
        yield name, (state, structs(batch, NamedSharding(mesh, P("data"))))


@pytest.mark.parametrize(
    "model",
    [model if name == DEFAULT else pytest.param(model, marks=pytest.mark.slow) for name, model in MODELS.items()],
    ids=lambda model: model.name,
)
def test_is_as_fast_as_any_layout_that_people_write_and_equals_one_device(model):
    step = training_step(model)
    state, batch = model.state(), model.examples()
    result = sw.autoshard(step)(structs(state), structs(batch))
    predicted = {name: sw.simulate(step, hardware="cpu")(*args).seconds for name, args in baselines(model)}
    assert result.seconds <= min(predicted.values()) * (1 + 1e-9), predicted
    assert result.plan.seconds == pytest.approx(result.seconds)
    assert result.plan.wire_bytes == result.wire_bytes
    assert result.plan.peak_bytes == result.peak_bytes
    expected, expected_loss = sw.jit(step)(state, batch)
    new_state, loss = result.jit()(state, batch)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
    sw.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5), new_state, expected)
    shardings = sw.tree.leaves(result.in_shardings[0])
    assert all(x.sharding == s for x, s in zip(sw.tree.leaves(new_state), shardings, strict=True))


@pytest.mark.parametrize(
    "model",
    [model if name == DEFAULT else pytest.param(model, marks=pytest.mark.slow) for name, model in MODELS.items()],
    ids=lambda model: model.name,
)
def test_is_as_fast_as_any_layout_that_fits_in_less_memory_than_data_parallelism(model):
    step = training_step(model)
    layouts = dict(baselines(model))
    limit = sw.simulate(step, hardware="cpu")(*layouts["data parallel"]).peak_bytes - 1
    with sw.config.override("memory_limit", limit):
        runs = {name: sw.simulate(step, hardware="cpu")(*args) for name, args in layouts.items()}
    predicted = {name: run.seconds for name, run in runs.items() if run.peak_bytes <= limit}
    result = sw.autoshard(step, memory_limit=limit)(structs(model.state()), structs(model.examples()))
    assert result.plan.peak_bytes == result.peak_bytes <= limit
    assert result.seconds <= min(predicted.values(), default=math.inf) * (1 + 1e-9), predicted


def sgd(params, batch):
    x, y = batch

    def loss(params):
        return jnp.mean((jnp.maximum(x @ params["up"], 0) @ params["down"] - y) ** 2)

    value, grads = sw.value_and_grad(loss)(params)
    return sw.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def small(rows=64):
    struct = lambda *shape: sw.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    return {"up": struct(32, 128), "down": struct(128, 32)}, (struct(rows, 32), struct(rows, 32))


def test_arguments_of_all_layers_are_one_class():
    def step(layers, x):
        def loss(layers):
            h = x
            for up, down in layers:
                h = h + jnp.tanh(h @ up) @ down
            return jnp.mean(h)

        return sw.tree.map(lambda w, g: w - g, layers, sw.grad(loss)(layers))

    struct = lambda *shape: sw.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    traced = trace_step(sw.jit(step), ([(struct(16, 32), struct(32, 16))] * 3, struct(8, 16)))
    assert sorted(argument_classes(traced)) == [[0, 2, 4], [1, 3, 5], [6]]


def test_a_given_mesh_and_pinned_shardings_are_kept():
    mesh = sw.make_mesh((2, 4), ("a", "b"))
    params, batch = small()
    pinned = NamedSharding(mesh, P("b", None))
    params["up"] = sw.ShapeDtypeStruct((32, 128), jnp.float32, sharding=pinned)
    result = sw.autoshard(sgd, mesh=mesh)(params, batch)
    assert result.mesh is mesh and result.in_shardings[0]["up"] == pinned == result.out_shardings[0]["up"]
    assert sw.autoshard(sgd)(params, batch).mesh is mesh  # that of the pinned argument


def test_constraints_in_the_step_are_kept():
    mesh = sw.make_mesh((8,), ("rows",))
    rows = NamedSharding(mesh, P("rows"))

    def step(w, x):
        h = sw.lax.with_sharding_constraint(x @ w, rows)
        return w - 0.1 * x.T @ h

    w, x = jnp.ones((16, 16)), jnp.ones((32, 16))
    result = sw.autoshard(step)(w, x)
    assert result.mesh == mesh
    np.testing.assert_allclose(result.jit()(w, x), step(w, x), rtol=1e-5)
    with pytest.raises(ValueError, match="which has 8 devices, not 4"):
        sw.autoshard(step, devices=sw.devices()[:4])(w, x)


def test_hardware_that_is_not_present():
    result = sw.autoshard(sgd, hardware="h100", count=16)(*small(4096))
    assert isinstance(result.mesh, AbstractMesh) and result.mesh.size == 16
    assert result.plan.chip.name == "h100" and result.plan.seconds == pytest.approx(result.seconds)
    assert [a.order for a in result.alternatives] == sorted(a.order for a in result.alternatives)
    text = str(result)
    assert text.startswith("sgd on h100, mesh ") and result.best.name in text and str(result.mesh.abstract) in text
    assert any("FSDP" in alternative.name for alternative in result.alternatives)
    assert result.simulation.seconds == pytest.approx(result.seconds) and result.simulation.interval[0] < result.seconds
    error = result.plan.chip.prediction_error
    assert all(plan.fits and result.seconds <= plan.seconds <= (1 + error) * result.seconds for plan in result.ties)
    assert ("tie" in text) == bool(result.ties) and f"  {result.comparison.splitlines()[0]}" in text
    for alternative in result.alternatives:
        assert sum(seconds for _, seconds in alternative.parts) == pytest.approx(alternative.seconds)


def test_results_are_deterministic():
    mesh = AbstractMesh((4, 2), ("x", "y"))
    first, second = (sw.autoshard(sgd, hardware="h100", mesh=mesh)(*small()) for _ in range(2))
    assert first.alternatives == second.alternatives


def test_memory_limit():
    mesh = AbstractMesh((8,), ("data",))
    free = sw.autoshard(sgd, hardware="h100", mesh=mesh)(*small(4096))
    smaller = [a.peak_bytes for a in free.alternatives if a.peak_bytes < free.peak_bytes]
    limit = max(smaller)
    limited = sw.autoshard(sgd, hardware="h100", mesh=mesh, memory_limit=limit)(*small(4096))
    assert limited.plan.peak_bytes == limited.peak_bytes <= limit
    assert limited.seconds >= free.seconds


@pytest.mark.slow
def test_error_names_the_smallest_configuration_that_fits():
    with pytest.raises(AutoshardError, match=r"no plan of `sgd` fits in 20\.0 kB per device") as caught:
        sw.autoshard(sgd, hardware="h100", count=4, memory_limit=20_000)(*small())
    error = caught.value
    assert error.least.peak_bytes > 20_000 >= error.larger.peak_bytes
    assert error.larger.mesh.size > 4 and f"on {error.larger.mesh.size} devices" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.larger == error.larger


def test_error_says_whether_the_state_or_the_activations_do_not_fit():
    params, batch = small()
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in sw.tree.leaves(params))
    search = partial(sw.autoshard, sgd, mesh=AbstractMesh((2,), ("data",)), hardware="h100")
    with pytest.raises(AutoshardError, match=r"The state alone needs .* per device on 2 devices: use more") as caught:
        search(memory_limit=state_bytes // 2 - 1)(params, batch)
    assert "either" not in str(caught.value)  # the mesh is given, so no other number of devices was tried
    with pytest.raises(AutoshardError, match="Recompute activations with"):
        search(memory_limit=state_bytes // 2)(params, batch)


def layered(params, batch):
    def body(h, w):  # two residuals, the operands of sin, that neither are products nor cheap to recompute
        return jnp.sin(jnp.cumsum(jnp.sin(jnp.cumsum(jnp.sin(h @ w), 1)), 1) / 32), None

    def loss(params):
        return jnp.mean(sw.lax.scan(body, batch, params)[0] ** 2)

    value, grads = sw.value_and_grad(loss)(params)
    return params - 0.1 * grads, value


def test_scans_are_recomputed_if_memory_is_short():
    params, batch = np.full((16, 32, 32), 0.1, np.float32), np.ones((512, 32), np.float32)
    types = structs((params, batch))
    mesh = sw.make_mesh((8,), ("data",))

    def alternatives(remat):
        with sw.config.override("checkpoint_scans", remat):
            return sw.autoshard(layered, mesh=mesh)(*types).alternatives

    policies = {remat: alternatives(remat) for remat in ("none", "products", "all")}
    needed = {remat: min(a.peak_bytes for a in plans) for remat, plans in policies.items()}
    assert needed["all"] < needed["products"] < needed["none"]
    for limit in (needed["products"], needed["all"]):
        result = sw.autoshard(layered, mesh=mesh, memory_limit=limit)(*types)
        fastest = {
            remat: min(a.seconds for a in plans if a.peak_bytes <= limit)
            for remat, plans in policies.items()
            if needed[remat] <= limit
        }
        assert result.seconds <= min(fastest.values()) and result.remat in fastest
        assert result.plan.peak_bytes == result.peak_bytes <= limit
        assert "recomputed" in str(result)
    assert result.remat == "all"
    for x, expected in zip(result.jit()(params, batch), sw.jit(layered)(params, batch), strict=True):
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-6)


def test_all_is_recomputed_if_products_are_all_that_scans_save():
    def step(weights, x):
        def loss(weights):
            return jnp.mean(sw.lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, weights)[0] ** 2)

        return weights - 0.1 * sw.grad(loss)(weights)

    types = structs((np.ones((16, 32, 32), np.float32), np.ones((4096, 32), np.float32)))
    mesh = AbstractMesh((2,), ("data",))
    free = sw.autoshard(step, hardware="h100", mesh=mesh)(*types)
    limit = 2 * free.peak_bytes // 3
    limited = sw.autoshard(step, hardware="h100", mesh=mesh, memory_limit=limit)(*types)
    assert limited.remat == "all" and limited.plan.peak_bytes == limited.peak_bytes <= limit


def test_activations_have_the_layouts_that_run():
    seen = []

    def step(w, x):
        def loss(w):
            hidden = jnp.tanh(x @ w)
            sw.debug.inspect_array_sharding(hidden, callback=seen.append)
            return jnp.mean(hidden**2)

        return w - 0.1 * sw.grad(loss)(w)

    mesh = sw.make_mesh((4, 2), ("data", "model"))
    w = sw.ShapeDtypeStruct((32, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "model")))
    x = sw.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    result = sw.autoshard(step)(w, x)
    (hidden,) = [row for row in result.activations if row.op == "tanh"]
    assert (hidden.type, hidden.spec, hidden.shard_bytes) == ("f32[16,64]", P("data", "model"), 16 * 64 * 4 // 8)
    seen.clear()
    result.jit()(np.ones((32, 64), np.float32), np.ones((16, 32), np.float32))
    assert seen[0].is_equivalent_to(NamedSharding(mesh, hidden.spec), 2)
    assert not any(row.type == "f32[32,64]" for row in result.activations)  # gradients of weights
    assert "test_autoshard.py" in str(result.activations) and "P('data', 'model')" in repr(result.activations)
    pins = [pin for row in result.plan.values for pin in row.pins]
    assert any("in_shardings" in pin for pin in pins) and all("test_autoshard.py" in pin for pin in pins)


def test_donated_arguments_count_once():
    def memory(step):
        mesh = AbstractMesh((8,), ("data",))
        return sw.autoshard(step, hardware="h100", mesh=mesh)(*small(8)).peak_bytes

    assert memory(sw.jit(sgd, donate_argnums=0)) < memory(sgd)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 4}, "pass both"),
        ({"hardware": "h100", "count": 0}, "count ≥ 1"),
        ({"hardware": "h1000", "count": 4}, "Did you mean 'h100'"),
        ({"devices": [], "mesh": AbstractMesh((2,), ("x",))}, "only one of"),
        ({"devices": []}, "devices is empty"),
        ({"hardware": "h100", "count": 8.5}, "count ≥ 1, not 8.5"),
        ({"memory_limit": 0}, "bytes that each device may hold, not 0"),
        ({"memory_limit": "80GB"}, "bytes that each device may hold, not '80GB'"),
    ],
    ids=str,
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        sw.autoshard(sgd, **options)(*small())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"devices": 4}, r"a list of devices.*not 4"), ({"mesh": "data=8"}, "is a Mesh or an AbstractMesh, not 'data=8'")],
    ids=str,
)
def test_options_of_wrong_types(options, message):
    with pytest.raises(TypeError, match=message):
        sw.autoshard(sgd, **options)
    with pytest.raises(TypeError, match="by position, not as keywords: batch"):
        sw.autoshard(sgd)(small()[0], batch=small()[1])


def prime_step(params, x):
    def loss(params):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    value, grads = sw.value_and_grad(loss)(params)
    return sw.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_dims_that_axes_do_not_divide_are_sharded_with_padding():
    rng = np.random.default_rng(0)
    params = {"up": rng.normal(size=(101, 211)), "down": rng.normal(size=(211, 53))}
    params = sw.tree.map(lambda w: w.astype(np.float32) / 10, params)
    x = rng.normal(size=(197, 101)).astype(np.float32)
    result = sw.autoshard(prime_step, devices=sw.devices()[:6])(structs(params), structs(x))
    replicated = next(a for a in result.alternatives if a.name == "replicated")
    assert result.seconds < replicated.seconds / 2 and result.peak_bytes < replicated.peak_bytes
    for array, expected in zip(
        sw.tree.leaves(result.jit()(params, x)), sw.tree.leaves(sw.jit(prime_step)(params, x)), strict=True
    ):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "args"),
    [
        pytest.param(lambda params, x: None, small(), id="returns nothing"),
        pytest.param(lambda: jnp.ones(5), (), id="has no arguments"),
        pytest.param(lambda x: jnp.sum(x**2), small()[1][:1], id="has no state"),
        pytest.param(
            prime_step,
            ({"up": structs(np.ones((0, 8))), "down": structs(np.ones((8, 8)))}, structs(np.ones((8, 0)))),
            id="is empty",
        ),
        pytest.param(
            lambda s, x: ({"n": s["n"] + 1, "rows": s["rows"].at[s["n"]].add(1)}, x.sum()),
            ({"n": 0, "rows": structs(np.ones(64, np.int32))}, structs(np.ones((8, 8)))),
            id="counts",
        ),
    ],
)
def test_unusual_steps(step, args):
    result = sw.autoshard(step, hardware="h100", count=6)(*args)
    assert result.plan.seconds == pytest.approx(result.seconds) and str(result) and str(result.activations)
    assert sw.tree.structure(result.in_shardings) == sw.tree.structure(args)


def test_one_device():
    for mesh in (AbstractMesh((1,), ("data",)), AbstractMesh((), ())):
        result = sw.autoshard(sgd, hardware="h100", mesh=mesh)(*small())
        assert [a.name for a in result.alternatives] == ["replicated"] and result.wire_bytes == 0


def test_explicit_meshes_and_static_arguments_are_errors():
    explicit = sw.make_mesh((8,), ("x",), axis_types=sw.sharding.AxisType.Explicit)
    with pytest.raises(ValueError, match="Explicit axes"):
        sw.autoshard(sgd, mesh=explicit)(*small())
    with pytest.raises(ValueError, match="static arguments"):
        sw.autoshard(sw.jit(lambda x, n: x * n, static_argnums=1))


def test_the_busiest_experts_have_the_tokens_of_the_imbalance():
    balanced, busy = (
        sw.autoshard(expert_layer.step, hardware="h100", mesh=expert_layer.MESH, expert_imbalance=ratio)(
            *expert_layer.arguments()
        )
        for ratio in (1, 1.5)
    )
    assert busy.seconds == busy.simulation.seconds == busy.plan.seconds == pytest.approx(1.5 * balanced.seconds)
    with pytest.raises(ValueError, match="autoshard: expert_imbalance must be at least 1"):
        sw.autoshard(expert_layer.step, hardware="h100", expert_imbalance=0.5)
