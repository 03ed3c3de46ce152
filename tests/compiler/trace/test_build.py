"""build and rewrite: functions of arrays staged into programs."""

import numpy as np

from shardwise import numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.trace.build import build, rewrite

F32 = parse_type("f32[3]")


def names(program):
    return [equation.op.name for equation in program.equations]


def test_a_function_becomes_a_program():
    program, captured = build(lambda x, y: [x * y, x], [F32, F32], "product")
    assert (program.name, names(program), captured) == ("product", ["mul"], [])
    assert program.in_types == (F32, F32)
    assert program.outputs[1] is program.inputs[0]


def test_unused_arguments_stay_inputs():
    program, _ = build(lambda x, y: [x], [F32, parse_type("i32[2]")], "first")
    assert list(map(str, program.in_types)) == ["f32[3]", "i32[2]"]


def test_results_may_be_python_scalars():
    program, _ = build(lambda: [2.5], [], "constant")
    assert evaluate(program, []) == (2.5,)


def test_closed_over_arrays_become_the_last_inputs():
    array = jnp.asarray(np.array([1, 2, 3], np.float32))
    program, captured = build(lambda x: [x + array], [F32], "closed")
    assert len(program.inputs) == 2
    assert captured[0] is array
    (result,) = evaluate(program, [np.ones(3, np.float32), np.asarray(captured[0])])
    np.testing.assert_array_equal(result, [2, 3, 4])


def test_an_array_that_is_used_twice_is_captured_once():
    array = jnp.asarray(np.ones(3, np.float32))
    program, captured = build(lambda x: [x + array, x * array], [F32], "twice")
    assert len(captured) == 1
    assert program.equations[0].inputs[1] is program.equations[1].inputs[1]


def test_tracers_of_an_outer_frame_become_inputs_of_the_inner_program():
    inner = []

    def outer(x):
        inner.append(build(lambda y: [x * y], [F32], "inner"))
        return [x]

    build(outer, [F32], "outer")
    ((program, captured),) = inner
    assert len(program.inputs) == 2
    assert [str(tracer.type) for tracer in captured] == ["f32[3]"]
    assert captured[0].frame.name == "outer"


def test_constants_of_an_outer_frame_are_recomputed_instead_of_captured():
    inner = []

    def outer(x):
        one = jnp.full((3,), 2.0)
        inner.append(build(lambda y: [y * one], [F32], "inner"))
        return [x]

    build(outer, [F32], "outer")
    ((program, captured),) = inner
    assert captured == []
    assert len(program.inputs) == 1


def test_rewrite_sees_no_outer_frame():
    """Its program has no captured inputs, and nothing is added to the frame that is open around it."""
    made = []

    def outer(x):
        made.append(rewrite("doubled", [F32], lambda y: [Add()(y, y)]))
        return [x]

    program, _ = build(outer, [F32], "outer")
    assert names(program) == []
    assert names(made[0]) == ["add"]


def test_rewrite_keeps_an_outer_array_as_a_constant():
    array = jnp.asarray(np.array([1, 2, 3], np.float32))
    program = rewrite("scaled", [F32], lambda x: [Mul()(Mul()(x, array), array)])
    assert len(program.inputs) == 1
    assert names(program) == ["array_constant", "mul", "mul"]
