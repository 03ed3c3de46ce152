"""The chosen plan is cheaper than others, satisfies all pins, and is deterministic."""

import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

import shardwise
from shardwise import numpy as jnp
from shardwise.compiler.candidates.candidate import replicated_candidate
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.choose import _AxisProblem, _Planner, choose, choose_candidates
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.eliminate import IdentityCache, eliminate
from shardwise.compiler.plan.hardware import CPU, built_in_chips, chip
from shardwise.compiler.plan.plan_from_picks import plan_from_picks
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lower_keys import lower_keys
from tests.fuzz.check import Case, random_case, random_picks
from tests.fuzz.layouts import abstract, partition_spec

MESH = AbstractMesh((4, 2), ("data", "model"))


def f32(*shape):
    return ArrayType(shape, np.float32)


def picks_cost(problem, picks):
    """Return the cost of picks: the compute cost, and the communication cost along every axis."""
    return _Planner(problem, Costs(CPU, problem.mesh), IdentityCache()).cost(picks)


def planned(function, types, specs, mesh=MESH, out_specs=None):
    """Return all stages of a function whose inputs have the shardings `specs`."""
    program, captured = build(lambda *args: shardwise.tree.leaves(function(*args)), types, "planned")
    assert not captured
    pins = [pin_of(spec, type.shape, mesh) for spec, type in zip(specs, types, strict=True)]
    outs = [None] * len(program.outputs) if out_specs is None else out_specs
    out_pins = [
        None if spec is None else pin_of(spec, t.shape, mesh) for spec, t in zip(outs, program.out_types, strict=True)
    ]
    return run_stages(program, mesh, pins, out_pins)


def collectives(stages):
    found = {}
    for equation in stages.local.collectives():
        found[equation.op.name] = found.get(equation.op.name, 0) + 1
    return found


def mlp(x, *weights):
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = jnp.maximum(x @ up, 0.0) @ down
    return x


def loss(weights, x, y):
    error = mlp(x, *weights) - y
    return jnp.mean(error * error)


MEGATRON = [P("data", None), P(None, "model"), P("model", None)]


def test_megatron_mlp_needs_one_all_reduce():
    stages = planned(mlp, [f32(32, 64), f32(64, 256), f32(256, 64)], MEGATRON)
    assert collectives(stages) == {"all_reduce": 1}
    assert stages.plan.outputs == (Layout((("data",), ())),)


def test_a_data_parallel_gradient_needs_one_all_reduce_for_each_parameter():
    types = [f32(64, 128), f32(128, 64), f32(64, 128), f32(128, 64)]

    def gradient(x, y, *weights):
        return shardwise.grad(loss)(list(weights), x, y)

    specs = [P("data"), P("data"), *[P()] * 4]
    stages = planned(gradient, [f32(32, 64), f32(32, 64), *types], specs, out_specs=[P()] * 4)
    assert collectives(stages) == {"all_reduce": 4}


def test_two_partial_sums_that_are_added_need_one_all_reduce():
    def both(x, w, v):
        return x @ w + x @ v

    specs = [P(None, "model"), P("model", None), P("model", None)]
    stages = planned(both, [f32(32, 64), f32(64, 32), f32(64, 32)], specs, out_specs=[P()])
    assert collectives(stages) == {"all_reduce": 1}


def test_a_sum_with_a_sharded_output_is_a_reduce_scatter():
    stages = planned(
        jnp.matmul, [f32(512, 512), f32(512, 512)], [P(None, "data"), P("data", None)], out_specs=[P("data", None)]
    )
    assert collectives(stages) == {"reduce_scatter": 1}


def test_consumers_share_one_all_gather():
    # The columns of both products are pinned, so x is all-gathered along data, once.
    def products(x, w, v):
        return x @ w, x @ v

    specs = [P(None, "data"), P(None, "data"), P(None, "data")]
    types = [f32(8, 4096), f32(4096, 4096), f32(4096, 4096)]
    stages = planned(products, types, specs, out_specs=[P(None, "data")] * 2)
    assert collectives(stages) == {"all_gather": 1}


def test_partial_sums_are_scaled_by_constants_but_never_multiplied_by_data():
    def scaled(x, w, v, by):
        return (x @ w) / 2 + (x @ v) * 3

    def multiplied(x, w, v, by):
        return (x @ w) * by + x @ v

    specs = [P(None, "model"), P("model", None), P("model", None), P()]
    types = [f32(32, 64), f32(64, 32), f32(64, 32), f32(32, 32)]
    assert collectives(planned(scaled, types, specs, out_specs=[P()])) == {"all_reduce": 1}
    # If `by` is inf, the product of the sum can be inf while the sum of the products is NaN.
    assert collectives(planned(multiplied, types, specs, out_specs=[P()])) == {"all_reduce": 2}


def test_pins_are_always_satisfied():
    # A fully replicated plan would need no communication; the constraint needs an all-gather and two all-to-alls.
    def pinned(x):
        x = shardwise.lax.with_sharding_constraint(x, sharding(P("data", None)))
        x = shardwise.lax.with_sharding_constraint(x + 1, sharding(P(None, ("model", "data"))))
        return shardwise.lax.with_sharding_constraint(x * 2, sharding(P("model", "data")))

    mesh = shardwise.make_mesh((4, 2), ("data", "model"))

    def sharding(spec):
        return shardwise.NamedSharding(mesh, spec)

    stages = planned(pinned, [f32(16, 16)], [P()], mesh.abstract, [P(("data", "model"))])
    kept = [c.results[0].dims for e, c in stages.plan.choices.items() if e.op.name == "constrain"]
    assert kept == [(("data",), ()), ((), ("model", "data")), (("model",), ("data",))]
    assert stages.plan.outputs[0].dims == (("data", "model"), ())


def sharded_case(case: Case):
    program, captured = case.traced
    mesh = abstract(case.mesh)
    specs = (*case.in_specs, *((),) * len(captured))
    pins = [pin_of(partition_spec(s), t.shape, mesh) for s, t in zip(specs, program.in_types, strict=True)]
    outs = [
        None if s is None else pin_of(partition_spec(s), t.shape, mesh)
        for s, t in zip(case.out_specs, program.out_types, strict=True)
    ]
    return layout_problem(dce(lower_keys(inline(program))), mesh, pins, outs)


def local_cost(problem, plan):
    """Return the number of collectives of the partitioned program, and the bytes that they send."""
    local = partition(problem, plan)
    return len(local.collectives()), sum(map(local.bytes_sent, local.collectives()))


def chosen_picks(problem, monkeypatch):
    found = []
    monkeypatch.setattr("shardwise.compiler.plan.choose.plan_from_picks", lambda _, picks, chip: found.append(picks))
    choose(problem)
    monkeypatch.undo()
    return found[0]


@pytest.mark.table(default=20)
@pytest.mark.parametrize("seed", range(40))
def test_no_random_plan_is_cheaper(seed, monkeypatch):
    problem = sharded_case(random_case(seed))
    ours = picks_cost(problem, chosen_picks(problem, monkeypatch))
    rng = Random(seed)
    others = [picks_cost(problem, random_picks(problem, rng)) for _ in range(20)]
    assert ours <= min(others) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_the_greedy_plan_is_not_cheaper(seed, monkeypatch):
    problem = sharded_case(random_case(seed))
    ours = picks_cost(problem, chosen_picks(problem, monkeypatch))

    def hinted(labels, tables, hint, cache=None):  # without a cache, the cost of given picks is computed
        return eliminate(labels, tables, hint) if cache is None else hint()

    monkeypatch.setattr("shardwise.compiler.plan.choose.eliminate", hinted)
    greedy = chosen_picks(problem, monkeypatch)
    assert ours <= picks_cost(problem, greedy) * (1 + 1e-12)
    assert np.isfinite(picks_cost(problem, greedy))


def test_the_cost_of_picks_matches_the_partitioned_program():
    types = [f32(256, 512), f32(512, 2048), f32(2048, 512)]
    stages = planned(mlp, types, MEGATRON, out_specs=[P("data")])
    first = {
        axis: {equation: options[0] for equation, options in rows.items()}
        for axis, rows in stages.problem.candidates.items()
    }
    ours = local_cost(stages.problem, stages.plan)
    assert ours == (1, 2 * 256 * 512 * 4 / 4 / 2)  # an all-reduce over model of a quarter of the rows
    assert ours < local_cost(stages.problem, plan_from_picks(stages.problem, first))


def layer_layouts(layers):
    types = [f32(32, 64), *[f32(64, 128), f32(128, 64)] * layers]
    stages = planned(mlp, types, [P("data"), *[P(None, "model"), P("model", None)] * layers])
    equations = stages.problem.program.equations
    rows = [stages.plan.choices[equation] for equation in equations if equation in stages.plan.choices]
    size = len(rows) // layers
    return [rows[i * size : (i + 1) * size] for i in range(layers)]


def test_picks_that_are_no_candidates_have_infinite_cost():
    """An op that is replicated for want of a compatible candidate has others once the other axes change."""
    problem = planned(jnp.matmul, [f32(8, 8), f32(8, 8)], [P("data"), P(None, "model")]).problem
    picks = choose_candidates(problem, Costs(CPU, problem.mesh))
    assert picks_cost(problem, picks) < math.inf
    (product,) = (equation for equation in picks["data"] if equation.op.is_contraction)
    replicated = replicated_candidate(2, 1)
    assert replicated not in problem.candidates["data"][product]
    assert picks_cost(problem, {**picks, "data": {**picks["data"], product: replicated}}) == math.inf


def test_another_layer_does_not_change_the_plan_of_the_others():
    three, four = layer_layouts(3), layer_layouts(4)
    assert all(layer == three[1] for layer in three[1:])
    assert four[:3] == three
    assert four[3] == three[2]


ROOT = Path(__file__).parents[3]
PLAN_TEXT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {__name__} import plan_text; print(plan_text())"


def plan_text():
    types = [f32(30, 64), *[f32(64, 128), f32(128, 64)] * 2, f32(30, 64)]

    def step(x, *rest):
        weights, y = list(rest[:-1]), rest[-1]
        return [w - 0.1 * g for w, g in zip(weights, shardwise.grad(loss)(weights, x, y), strict=True)]

    specs = [P("data"), *[P(None, "model"), P(("model", "data"), None)] * 2, P("data")]
    return planned(step, types, specs).module.text


@pytest.mark.slow
def test_the_plan_does_not_depend_on_the_hash_seed():
    texts = set()
    command = [sys.executable, "-c", PLAN_TEXT]
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ran = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        texts.add(ran.stdout)
    assert len(texts) == 1
    assert "all_reduce" in texts.pop()


def test_a_value_with_more_uses_than_an_array_has_dims_can_be_planned():
    def many(x, y):
        return [x * float(n) + y for n in range(70)]

    stages = planned(many, [f32(16, 4), f32(16, 4)], [P("data"), P("model")])
    assert len(stages.plan.outputs) == 70


def test_a_dim_is_not_sharded_over_more_devices_than_it_has_elements():
    """The product has 2 batches. Sharding these over 4 devices would send and compute padding."""

    def products(x):
        y = x.reshape(2, 4, 4)
        return jnp.einsum("bij,bkj->bik", y, y)

    stages = planned(products, [f32(8, 4)], [P("data")])
    (dot,) = [choice for equation, choice in stages.plan.choices.items() if equation.op.is_contraction]
    assert stages.problem.mesh.extent(dot.results[0].dims[0]) == 2
    assert stages.local.sent == 32  # an all-gather of one half of each batch


def test_more_devices_than_heads_gather_the_rest_of_each_head():
    """Padding the heads would move shards of them to other devices, which then compute with zeros."""

    def attention(x, query, key, value):
        query, key, value = ((x @ w).reshape(256, 4, 8) for w in (query, key, value))
        return jnp.einsum("hqk,khd->qhd", jnp.einsum("qhd,khd->hqk", query, key), value).reshape(256, 32)

    types, specs = [f32(256, 32), *[f32(32, 32)] * 3], [P(), *[P(None, "model")] * 3]
    stages = planned(attention, types, specs, AbstractMesh((16,), ("model",)), [P(None, "model")])
    assert collectives(stages) == {"all_gather": 2}


def test_an_axis_of_one_device_changes_nothing():
    alone = planned(mlp, [f32(32, 64), f32(64, 256), f32(256, 64)], MEGATRON, AbstractMesh((1, 2), ("data", "model")))
    assert collectives(alone) == {"all_reduce": 1}


def training_step(layers):
    """A step of gradient descent of an MLP, its types and its layouts."""

    def step(x, y, *weights):
        return [w - 0.1 * g for w, g in zip(weights, shardwise.grad(loss)(list(weights), x, y), strict=True)]

    types = [f32(32, 64), f32(32, 64), *[f32(64, 128), f32(128, 64)] * layers]
    return step, types, [P("data"), P("data"), *[P(None, "model"), P("model", None)] * layers]


def test_tables_of_a_layer_are_cached_for_the_next(monkeypatch):
    made = []
    of = IdentityCache.get

    def counted(self, key, named, work):
        def working():
            made.append(key)
            return work()

        return of(self, key, named, working)

    monkeypatch.setattr(IdentityCache, "get", counted)
    counts = []
    for layers in (4, 8, 16):
        made.clear()
        planned(*training_step(layers))
        counts.append(len(made))
    four, eight, sixteen = counts
    assert eight < 1.25 * four and sixteen < 1.25 * eight


def test_training_steps_are_solved_exactly(monkeypatch):
    """Elimination fixes no variable: the hint is never computed."""
    monkeypatch.setattr("shardwise.compiler.plan.choose._AxisProblem._greedy", lambda self: pytest.fail("held"))
    planned(*training_step(8))


def test_a_later_round_starts_from_the_one_before(monkeypatch):
    """Where elimination fixes variables, it fixes them at the candidates of the last round if those are cheaper."""
    problem = planned(mlp, [f32(512, 256), f32(256, 64), f32(64, 256)], MEGATRON).problem
    axis_problem = _AxisProblem(_Planner(problem, Costs(CPU, problem.mesh), IdentityCache()), "model", {})
    exact = axis_problem.solve()
    others = {
        equation: next((candidate for candidate in options if candidate != exact[equation]), exact[equation])
        for equation, options in axis_problem.options.items()
    }
    cheap, dear = map(axis_problem._labels_of, (exact, others))
    assert axis_problem._total(cheap) < axis_problem._total(dear)
    for greedy, before, expected in ((dear, None, dear), (dear, exact, cheap), (cheap, others, cheap)):
        monkeypatch.setattr(_AxisProblem, "_greedy", lambda self, greedy=greedy: greedy)
        assert axis_problem._hint(before) == expected


class TestHardware:
    """Costs depend on the chip: latency and bytes cost more over slow links."""

    def test_a_plan_records_its_chip(self):
        problem = planned(mlp, [f32(32, 64), f32(64, 256), f32(256, 64)], MEGATRON).problem
        assert choose(problem).chip is CPU
        assert choose(problem, chip("h100")).chip is chip("h100")

    @pytest.mark.parametrize("name", built_in_chips())
    def test_large_programs_have_the_same_plan_on_all_chips(self, name):
        """If bytes dominate latencies, Megatron's layout needs its all-reduces and nothing else."""
        types = [f32(8192, 4096), f32(4096, 16384), f32(16384, 4096)]
        problem = planned(mlp, types, MEGATRON).problem
        local = partition(problem, choose(problem, chip(name)))
        assert [equation.op.name for equation in local.collectives()] == ["all_reduce"]

    def test_over_slow_links_replicated_work_is_cheaper_than_a_second_collective(self):
        """A sum, elementwise work on it, and a replicated result. Reduce-scatter, sharded work and all-gather send as
        many bytes as all-reduce and replicated work, but have two latencies. Within a node latencies are small."""

        def work(x, w):
            y = jnp.tanh(jnp.tanh(jnp.tanh(x @ w)))
            return y, y

        mesh = AbstractMesh((4, 8), ("node", "gpu"))
        found = {}
        for axis in mesh.axis_names:
            types, specs = [f32(1536, 65536), f32(65536, 1024)], [P(None, axis), P(axis, None)]
            problem = planned(work, types, specs, mesh, [P(), P(axis, None)]).problem
            local = partition(problem, choose(problem, chip("h100")))
            found[axis] = [equation.op.name for equation in local.collectives()]
        assert found == {"gpu": ["reduce_scatter", "all_gather"], "node": ["all_reduce"]}


def test_plans_that_share_cost_tables_are_those_of_their_own_tables():
    """The tables depend on the sizes and links of axes, and on the candidates, and on nothing else of a mesh."""
    program, _ = build(lambda x, w, v: [jnp.maximum(x @ w, 0) @ v], [f32(64, 32), f32(32, 128), f32(128, 32)], "mlp")
    shared = IdentityCache()
    for sizes in ((4, 2), (2, 4), (8, 2)):
        mesh = AbstractMesh(sizes, ("data", "model"))
        for specs in ((P("data"), P(None, "model"), P("model")), (P("data"), P("data"), P(None, "data"))):
            pins = [pin_of(spec, type.shape, mesh) for spec, type in zip(specs, program.in_types, strict=True)]
            problem = layout_problem(program, mesh, pins, [None])
            together, alone = choose(problem, chip("h100"), shared), choose(problem, chip("h100"))
            assert together.choices == alone.choices and together.outputs == alone.outputs


def test_a_sum_over_two_axes_is_scattered_before_its_size_counts_along_the_other():
    """Gradients under hybrid FSDP are reduced between nodes in bf16, before the cast, on their shards."""
    mesh = AbstractMesh((4, 8), ("node", "data"))

    def on(*shape, dtype, spec):
        return shardwise.ShapeDtypeStruct(shape, dtype, sharding=shardwise.NamedSharding(mesh, spec))

    def update(weights, x):
        def loss(weights):
            layer = lambda x, w: (jnp.sin(x @ w.astype(jnp.bfloat16)), None)  # noqa: E731
            return shardwise.lax.scan(layer, x, weights)[0].astype(jnp.float32).sum()

        return weights - shardwise.grad(loss)(weights)

    w = on(8, 4096, 4096, dtype=np.float32, spec=P(None, "data"))
    x = on(65536, 4096, dtype=jnp.bfloat16, spec=P(("node", "data")))
    plan = shardwise.simulate(update, hardware="h100")(w, x).plan
    between = [row for row in plan.collectives if "node" in row.axes]
    assert between and all("bf16" in str(row.type) for row in between)


@pytest.mark.parametrize("nodes", [4, 32])
@pytest.mark.parametrize("scanned", [True, False])
def test_a_gradient_over_nodes_and_devices_is_scattered_along_both_axes_at_once(nodes, scanned):
    """Neither axis leaves the larger sum to the other: both are reduced in bf16, before the cast."""
    mesh = AbstractMesh((nodes, 8), ("node", "data"))

    def on(*shape, dtype, spec):
        return shardwise.ShapeDtypeStruct(shape, dtype, sharding=shardwise.NamedSharding(mesh, spec))

    def update(layers, x):
        def loss(layers):
            layer = lambda x, w: (jnp.sin(x @ w.astype(jnp.bfloat16)), None)  # noqa: E731
            y = shardwise.lax.scan(layer, x, layers)[0] if scanned else layer(layer(x, layers[0])[0], layers[1])[0]
            return y.astype(jnp.float32).sum()

        return shardwise.tree.map(lambda w, gradient: w - 0.1 * gradient, layers, shardwise.grad(loss)(layers))

    both = ("node", "data")
    if scanned:
        layers = on(8, 4096, 4096, dtype=np.float32, spec=P(None, both))
    else:
        layers = [on(4096, 4096, dtype=np.float32, spec=P(both))] * 2
    x = on(4096 * nodes * 8, 4096, dtype=jnp.bfloat16, spec=P(both))
    plan = shardwise.simulate(update, hardware="h100")(layers, x).plan
    assert set(plan.counts()) == {"all_gather", "reduce_scatter"}
    assert all(row.axes == both and "bf16" in str(row.type) for row in plan.collectives)
