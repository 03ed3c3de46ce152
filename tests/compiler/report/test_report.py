"""The plan as data: collectives with cost and reason, layouts with their origin."""

import dataclasses

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.traffic import all_reduce
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


def shaped(mesh, spec, *shape):
    return sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))


def mlp(x, w1, w2):
    return jnp.maximum(x @ w1, 0.0) @ w2


@pytest.fixture(scope="module")
def plan(mesh):
    args = shaped(mesh, P("data"), 30, 16), shaped(mesh, P(None, "model"), 16, 64), shaped(mesh, P("model"), 64, 4)
    return sw.jit(mlp).lower(*args).plan


def test_compiled_and_lowered_have_the_same_plan(mesh, plan):
    rng = np.random.default_rng(0)
    arrays = [
        sw.device_put(rng.normal(size=shape).astype(np.float32), NamedSharding(mesh, spec))
        for shape, spec in (((30, 16), P("data")), ((16, 64), P(None, "model")), ((64, 4), P("model")))
    ]
    compiled = sw.jit(mlp).lower(*arrays).compile()
    assert compiled.plan == plan
    assert compiled.plan is compiled.plan
    assert compiled.plan.wire_bytes == compiled.cost_analysis()["wire bytes"]
    assert sw.explain(compiled)().plan == plan


def test_the_plan_is_plain_data(plan):
    assert dataclasses.is_dataclass(plan)
    assert [(row.name, row.shard_shape, row.bytes) for row in plan.inputs] == [
        ("`x`", (8, 16), 512),
        ("`w1`", (16, 32), 2048),
        ("`w2`", (32, 4), 512),
    ]
    assert [str(row.layout) for row in plan.outputs] == ["P('data', None)"]
    assert repr(plan).startswith("<plan of mlp on mesh data=4, model=2: 1 all_reduce, 128 bytes sent and 4352 held")


def test_a_collective_has_its_bytes_time_line_and_pins(plan, mesh):
    (row,) = plan.collectives
    assert (row.kind, row.axes, row.type, row.times, row.inserted) == ("all_reduce", ("model",), "f32[8,4]", 1, True)
    assert row.sent == 128
    assert row.seconds == chip("cpu").collective_time(all_reduce(128, 2), mesh.abstract, ("model",))
    assert row.source.function == "mlp" and row.source.file == __file__
    assert row.pins == ("`w1` in P(None, 'model')", "`w2` in P('model', None)")
    assert plan.communication_seconds == row.seconds
    assert plan.seconds == pytest.approx(plan.compute_seconds + row.seconds)
    assert plan.compute_seconds == pytest.approx(sum(s.seconds for s in plan.timeline.steps if s.op != "all_reduce"))


def test_values_name_the_pins_that_their_layouts_come_from(plan):
    rows = {row.op: row for row in plan.values}
    assert [row.origin for row in plan.values] == ["input", "input", "input", "chosen", "free", "chosen", "chosen"]
    assert rows["max"].pins == ("`x`", "`w1`")
    assert str(rows["max"].layout) == "P('data', 'model')"
    assert rows["dot"].pins == ("`x`", "`w1`", "`w2`")  # the last
    assert str(rows["dot"].layout) == "P('data', None) + sum over 'model'"


def test_layouts_can_come_from_constraints_and_outputs(mesh):
    where = NamedSharding(mesh, P(None, "model"))

    def f(x):
        return jnp.cos(lax.with_sharding_constraint(jnp.sin(x), where))

    plan = sw.jit(f).lower(shaped(mesh, P("data"), 8, 8)).plan
    rows = {row.op: row for row in plan.values}
    assert rows["constrain"].origin == "constraint"
    (pin,) = rows["cos"].pins
    assert pin.startswith("the constraint at test_report.py:")
    (row,) = plan.collectives
    assert row.pins == ("`x` in P('data', None)", f"{pin} in P(None, 'model')")

    asked = sw.jit(jnp.sin, out_shardings=NamedSharding(mesh, P("data")))
    plan = asked.lower(shaped(mesh, P(), 8, 8)).plan
    assert plan.values[-1].pins == ("out_shardings for `output`",)


def test_scopes_and_loop_bodies_are_listed(mesh):
    def layers(w, x):
        with sw.named_scope("layers"):
            return lax.scan(lambda h, w: (h @ w, None), x, w)[0]

    plan = sw.jit(layers).lower(shaped(mesh, P(None, "data"), 6, 64, 64), shaped(mesh, P("data"), 256, 64)).plan
    (row,) = plan.collectives
    assert row.scope == ("layers",)
    assert row.times == 6
    assert row.sent == 6 * 3 * 16 * 64 * 4
    assert row.pins == ("`w` in P(None, 'data', None)", "`x` in P('data', None)")
    assert [(row.op, row.operands, row.depth) for row in plan.values] == [
        ("input", (), 0),
        ("input", (), 0),
        ("scan", ("`x`", "`w`"), 0),
        ("body input of scan", (), 1),
        ("body input of scan", (), 1),
        ("dot", ("%3", "%4"), 1),
    ]


def test_a_program_on_one_device_has_a_plan():
    plan = sw.jit(lambda x: x @ x.T).lower(np.ones((64, 64), np.float32)).plan
    assert plan.collectives == () and plan.wire_bytes == 0
    assert plan.compute_seconds > 0
    assert plan.peak_bytes >= 2 * 64 * 64 * 4


def test_times_are_for_the_requested_hardware():
    mesh = AbstractMesh((64, 8), ("data", "model"))
    x, w = shaped(mesh, P("data"), 8192, 4096), shaped(mesh, P(None, "model"), 4096, 8192)
    plans = {name: sw.explain(lambda x, w: (x @ w).sum(), hardware=name)(x, w).plan for name in ("h100", "v5e", "a100")}
    flops = 2 * 128 * 4096 * 1024
    for name, plan in plans.items():
        assert plan.chip.name == name
        (product,) = [step for step in plan.timeline.steps if step.op == "dot"]
        assert product.seconds >= flops / chip(name).f32_flops
    assert plans["a100"].compute_seconds > plans["h100"].compute_seconds
    with pytest.raises(ValueError, match="unknown hardware 'h10'"):
        sw.explain(lambda x: x, hardware="h10")(x)


def test_the_old_name_of_a_shard_shape_still_works(plan):
    with pytest.warns(DeprecationWarning, match="shard_shape"):
        assert plan.inputs[0].piece == plan.inputs[0].shard_shape
