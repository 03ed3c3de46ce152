"""unfold: control flow as one flat list of equations."""

import pytest

from shardwise import lax
from shardwise.compiler.candidates.unfold import ASSUMED_TRIP_COUNT, unfold
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.collective.named import NamedSum
from shardwise.compiler.trace.build import build


def unfolded(function, *types):
    program, captured = build(function, [parse_type(type) for type in types], "unfolded")
    assert not captured
    return program, unfold(program)


def names(flat):
    return [equation.op.name for equation in flat.equations]


def test_a_program_without_control_flow_is_unchanged():
    program, flat = unfolded(lambda x: [x * 2 + x], "f32[4]")
    assert flat.equations == list(program.equations)
    assert not flat.boundaries
    assert {flat.run_counts[equation] for equation in flat.equations} == {1}


def test_a_scan_becomes_its_body_between_boundary_equations():
    """A carry enters and leaves the loop, a scanned array is unstacked, and the results are stacked."""

    def function(carry, xs):
        return lax.scan(lambda c, x: (c + x, c * x), carry, xs)

    program, flat = unfolded(function, "f32[4]", "f32[3,4]")
    assert sorted(names(flat)) == ["add", "carry", "mul", "stack", "unstack"]
    assert names(flat)[-1] == "stack"  # after the body, since it reads results of the body
    (equation,) = program.equations
    boundary = flat.boundaries[equation]
    assert [slot.equation.op.name for slot in boundary.operands] == ["carry", "unstack"]
    assert [slot.equation.op.name for slot in boundary.results] == ["carry", "stack"]


def test_equations_of_a_loop_count_once_per_iteration():
    program, flat = unfolded(lambda c, xs: [lax.scan(lambda c, x: (c + x, None), c, xs)[0]], "f32[]", "f32[5]")
    (body,) = [equation for equation in flat.equations if equation.op.name == "add"]
    assert flat.run_counts[body] == 5
    assert flat.run_counts[program.inputs[0]] == 1


def test_nested_loops_multiply_their_trip_counts():
    def inner(c, x):
        return lax.fori_loop(0, 3, lambda _, c: c * x, c), None

    _, flat = unfolded(lambda c, xs: [lax.scan(inner, c, xs)[0]], "f32[]", "f32[5]")
    (product,) = [equation for equation in flat.equations if equation.op.name == "mul"]
    assert flat.run_counts[product] == 15


def test_a_while_loop_has_an_assumed_trip_count():
    _, flat = unfolded(lambda x: [lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x)], "f32[]")
    (product,) = [equation for equation in flat.equations if equation.op.name == "mul"]
    assert flat.run_counts[product] == ASSUMED_TRIP_COUNT


def test_all_branches_are_in_the_list():
    _, flat = unfolded(lambda p, x: [lax.cond(p, lambda x: x * x, lambda x: -x, x)], "bool[]", "f32[4]")
    assert {"mul", "neg", "predicate"} <= set(names(flat))


def test_a_collective_outside_of_its_axis_raises():
    program, _ = build(lambda x: [NamedSum(("i",))(x)], [parse_type("f32[4]")], "outside", axes={"i": 4})
    with pytest.raises(NameError, match=r"named_sum: .*'i'"):
        unfold(program)
