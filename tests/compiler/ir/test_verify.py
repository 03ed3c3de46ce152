"""verify: every invariant of a program, broken once."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler import transforms
from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result, verify
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import ProgramError
from tests.compiler.ir.values import LINE, THREE, values


def test_a_valid_program_is_returned():
    a, b, c, d = values(4)
    program = Program((a, b), (Equation(Add(), [a, b], [c]), Equation(Mul(), [c, c], [d])), (d, a, d))
    assert verify(program) is program
    assert program.in_types == (THREE, THREE)
    assert program.out_types == (THREE, THREE, THREE)
    assert list(program.values()) == [a, b, c, d]
    assert program.producers() == {c: program.equations[0], d: program.equations[1]}


def broken():
    a, b, c = values(3)
    (wrong,) = values(1, ArrayType((4,), np.float32))
    (whole,) = values(1, ArrayType((3,), np.int32))
    add = Equation(Add(), [a, b], [c], LINE)
    yield Program((a, a), (), ()), "f: an input is listed twice"
    yield Program((a,), (add,), (c,)), "f, equation 0 (add, train.py:12): an operand is used before it is defined"
    yield (
        Program((a, b), (Equation(Neg(), [c], [a]), add), (c,)),
        "f, equation 0 (neg, an unknown line): an operand is used before it is defined",
    )
    yield Program((a, b), (add, add), (c,)), "f, equation 1 (add, train.py:12): a result is defined twice"
    yield (
        Program((a, b), (Equation(Neg(), [a], [b]),), ()),
        "f, equation 0 (neg, an unknown line): a result is defined twice",
    )
    yield (
        Program((a, b), (Equation(Add(), [a, b], [wrong], LINE),), ()),
        "f, equation 0 (add, train.py:12): results are [f32[4]], the op infers [f32[3]]",
    )
    yield (
        Program((a, b), (Equation(Add(), [a, b], [c, wrong]),), ()),
        "f, equation 0 (add, an unknown line): results are [f32[3], f32[4]], the op infers [f32[3]]",
    )
    yield (
        Program((a, whole), (Equation(Add(), [a, whole], [c], LINE),), ()),
        "f, equation 0 (add, train.py:12): add: operands must have one shape and one dtype, not f32[3], i32[3]",
    )
    yield (
        Program((a,), (Equation(Sum((1,)), [a], [c]),), ()),
        "f, equation 0 (sum, an unknown line): sum: dims [1] do not exist in f32[3]",
    )
    yield Program((a,), (), (b,)), "f: an output is never defined"


@pytest.mark.parametrize(("program", "message"), list(broken()), ids=lambda part: part if isinstance(part, str) else "")
def test_a_broken_invariant_raises(program, message):
    named = Program(program.inputs, program.equations, program.outputs, "f")
    with pytest.raises(ProgramError) as caught:
        verify(named)
    assert str(caught.value) == message


def test_a_pass_that_returns_an_invalid_program_raises():
    @verifies_result
    def drop_first_equation(program):
        return program.with_equations(program.equations[1:])

    program = rewrite("f", [ArrayType((3,), np.float32)], lambda x: [Neg()(Neg()(x))])
    with pytest.raises(ProgramError, match=r"f, equation 0 \(neg, .*: an operand is used before it is defined"):
        drop_first_equation(program)
    with sw.config.override("verify_programs", False):
        drop_first_equation(program)


def test_every_program_to_program_pass_verifies_its_result():
    """A pass is a public function of compiler/transforms that returns a Program."""
    missing = []
    for path in Path(transforms.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.returns is not None:
                returns_program = re.search(r"\bProgram\b", ast.unparse(node.returns))
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                if returns_program and "verifies_result" not in decorators:
                    missing.append(f"{path.name}: {node.name}")
    assert missing == []
