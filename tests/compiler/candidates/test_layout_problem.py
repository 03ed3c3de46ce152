"""layout_problem: the candidates of all equations of a program, worked out by hand."""

from dataclasses import replace

import pytest

from shardwise import lax
from shardwise import numpy as jnp
from shardwise.compiler.candidates.layout_problem import layout_problem, rebuild, with_moves
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.host_copies import HostArrays
from shardwise.errors import ProgramError

MESH = AbstractMesh((4, 2), ("data", "model"))


def propagated(function, types, layouts, outputs=(), mesh=MESH):
    program, captured = build(function, [parse_type(type) for type in types], "propagated")
    assert not captured
    pins = [Pin(Layout(layout)) for layout in layouts]
    out_pins = [Pin(Layout(layout)) for layout in outputs] or [None] * len(program.outputs)
    return layout_problem(program, mesh, pins, out_pins)


def candidates(problem, axis, name):
    """The candidates of the only equation of this op on an axis, as text."""
    (rows,) = [rows for equation, rows in problem.candidates[axis].items() if equation.op.name == name]
    return list(map(str, rows))


def test_an_axis_reaches_equations_through_their_dims():
    """x @ w with x sharded along rows by data: only data has candidates other than replicated."""
    problem = propagated(lambda x, w: [jnp.tanh(x @ w)], ["f32[8,16]", "f32[16,4]"], [(("data",), ()), ((), ())])
    assert candidates(problem, "data", "dot") == ["0, replicated -> 0"]
    assert candidates(problem, "data", "tanh") == ["replicated -> replicated", "0 -> 0"]
    assert candidates(problem, "model", "dot") == ["replicated, replicated -> replicated"]
    assert candidates(problem, "model", "tanh") == ["replicated -> replicated"]


def test_a_contracted_dim_gives_partial_results_that_pass_through_linear_ops():
    types, layouts = ["f32[8,16]", "f32[16,4]", "f32[8,4]"], [((), ("model",)), (("model",), ()), ((), ())]
    problem = propagated(lambda x, w, b: [x @ w + b], types, layouts)
    assert candidates(problem, "model", "dot") == ["1, 0 -> sum"]
    assert candidates(problem, "model", "add") == ["replicated, replicated -> replicated", "sum, sum -> sum"]


def test_partial_results_do_not_pass_through_nonlinear_ops():
    types, layouts = ["f32[8,16]", "f32[16,4]"], [((), ("model",)), (("model",), ())]
    problem = propagated(lambda x, w: [jnp.tanh(x @ w)], types, layouts)
    assert candidates(problem, "model", "tanh") == ["replicated -> replicated"]


def test_constants_are_free():
    """A constant is rematerialized where it is used: it has no candidates."""
    problem = propagated(lambda x: [x + jnp.ones(8)], ["f32[8]"], [(("data",),)])
    assert [equation.op.name for equation in problem.planned] == ["add"]
    assert len(problem.free) > 0


def test_partial_sums_are_scaled_by_constants():
    problem = propagated(lambda x: [jnp.full((), 3.0, jnp.float32) * x.sum()], ["f32[8]"], [(("data",),)])
    assert candidates(problem, "data", "mul")[-1] == "replicated, sum -> sum"


def test_a_pinned_output_seeds_its_dims():
    problem = propagated(lambda x: [jnp.tanh(x)], ["f32[8,4]"], [((), ())], outputs=[(("data",), ("model",))])
    assert candidates(problem, "data", "tanh") == ["replicated -> replicated", "0 -> 0"]
    assert candidates(problem, "model", "tanh") == ["replicated -> replicated", "1 -> 1"]


def test_a_loop_carry_reaches_the_body():
    def function(x, w):
        return [lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]]

    problem = propagated(function, ["f32[8,4]", "f32[4,4]"], [(("data",), ()), ((), ())])
    assert "0 -> 0" in candidates(problem, "data", "tanh")


def test_a_scanned_input_keeps_its_layout():
    """Its slices are resharded one by one: resharding the stack would copy all of it at once."""

    def function(x, ws):
        return [lax.scan(lambda c, w: (c @ w, None), x, ws)[0]]

    layouts = [((), ("data",)), ((), ("data",), ())]
    problem = propagated(function, ["f32[8,4]", "f32[3,4,4]"], layouts)
    assert candidates(problem, "data", "unstack") == ["1 -> 0"]


def test_a_reshape_may_need_a_finer_mesh():
    """32 rows over data=8, reshaped to 4 × 8: the axis is split into parts of 4 and 2."""
    mesh = AbstractMesh((8,), ("data",))
    problem = propagated(lambda x: [x.reshape(4, 8)], ["f32[32]"], [(("data",),)], mesh=mesh)
    assert problem.mesh.axis_sizes == (4, 2)
    assert problem.in_pins[0].layout.dims == (problem.mesh.axis_names,)


def scores(query, key):
    """The scores of four heads of four elements."""
    return [jnp.einsum("qhd,khd->hqk", query.reshape(-1, 4, 4), key.reshape(-1, 4, 4))]


def test_a_product_is_replicated_along_an_axis_if_others_shard_its_factor_completely():
    """Four heads over eight devices: a sub-axis of 4 shards the heads, and one of 2 could only pad them."""
    mesh = AbstractMesh((8,), ("model",))
    problem = propagated(scores, ["f32[6,16]"] * 2, [((), ("model",))] * 2, mesh=mesh)
    major, minor = problem.mesh.axis_names
    assert problem.mesh.axis_sizes == (4, 2)
    assert "replicated, replicated -> replicated" not in candidates(problem, major, "dot")
    assert "replicated, replicated -> replicated" in candidates(problem, minor, "dot")


def test_a_product_is_sharded_along_an_axis_that_can_shard_its_sequence():
    """The sub-axis of 2 could only pad the heads, but it can shard the queries."""
    mesh = AbstractMesh((8,), ("model",))
    problem = propagated(scores, ["f32[16,16]"] * 2, [(("model",), ()), ((), ("model",))], mesh=mesh)
    for axis in problem.mesh.axis_names:
        assert "replicated, replicated -> replicated" not in candidates(problem, axis, "dot")


def test_on_one_device_there_are_no_candidates():
    problem = propagated(lambda x: [x + 1], ["f32[8]"], [((),)], mesh=AbstractMesh((), ()))
    assert problem.candidates == {}


def test_pins_must_match_inputs_and_outputs():
    with pytest.raises(ProgramError, match="propagated: 2 pins for 1 inputs, 1 pins for 1 outputs"):
        propagated(lambda x: [x + 1], ["f32[8]"], [((),), ((),)])


@pytest.mark.parametrize("again", [rebuild, lambda problem: with_moves(problem, frozenset())])
def test_a_problem_that_is_computed_again_keeps_all_that_is_not_changed(again):
    problem = propagated(lambda x, w: [jnp.tanh(x @ w)], ["f32[8,16]", "f32[16,4]"], [(("data",), ()), ((), ())])
    problem = replace(problem, host=HostArrays(frozenset({1}), frozenset({0})), out_names=("loss",))
    same = again(problem)
    assert same.candidates == problem.candidates
    for name in ("program", "mesh", "in_pins", "out_pins", "out_names", "user_meshes", "shardings", "moves", "host"):
        assert getattr(same, name) == getattr(problem, name), name
