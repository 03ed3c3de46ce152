"""Residuals of loops."""

from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.linearize import linearize_program
from tests.compiler.control.control_programs import program, types


def test_loop_invariant_residuals_are_computed_before_the_loop():
    body = program("scaled", "f32[2] f32[2]", lambda k, c: [Mul()(c, Mul()(k, k))])
    loop = Scan(body, 3, 1, 1)
    inputs = [Value(type) for type in types("f32[2] f32[2]")]
    outputs = [Value(parse_type("f32[2]"))]
    outer = Program(tuple(inputs), (Equation(loop, inputs, outputs),), tuple(outputs))
    forward, _, _ = linearize_program(outer, (False, True))
    names = [equation.op.name for equation in inline(forward).equations]
    assert names == ["mul", "scan"]
