"""verify: every invariant of a program, broken once; and equality of programs."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler import transforms
from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.program import Equation, Program, Reason, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result, verify
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import ProgramError

THREE = ArrayType((3,), np.float32)
LINE = Source("/home/me/train.py", 12, "step")


def values(count: int, type: ArrayType = THREE) -> list[Value]:
    return [Value(type) for _ in range(count)]


def test_a_valid_program_is_returned():
    a, b, c, d = values(4)
    program = Program((a, b), (Equation(Add(), [a, b], [c]), Equation(Mul(), [c, c], [d])), (d, a, d))
    assert verify(program) is program
    assert program.in_types == (THREE, THREE)
    assert program.out_types == (THREE, THREE, THREE)
    assert list(program.values()) == [a, b, c, d]
    assert program.producers() == {c: program.equations[0], d: program.equations[1]}


def test_a_program_prints_as_its_name_and_types():
    a, b = values(2)
    assert repr(Program((a, b), (), (b,), "f")) == "f(f32[3], f32[3]) -> (f32[3])"


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


def chain(*ops, name="main", source=LINE, reason=None):
    """x → op(x, …) → …"""
    inputs = values(2)
    value, equations = inputs[0], []
    for op in ops:
        operands = [value, inputs[1]] if isinstance(op, (Add, Mul)) else [value]
        outputs = values(1)
        equations.append(Equation(op, operands, outputs, source, reason))
        (value,) = outputs
    return Program(tuple(inputs), tuple(equations), (value,), name)


class TestEquality:
    def test_names_sources_and_reasons_do_not_count(self):
        first = chain(Add(), Exp())
        second = chain(Add(), Exp(), name="other", source=Source("b.py", 1, "g"), reason=Reason())
        assert first == second
        assert hash(first) == hash(second)

    @pytest.mark.parametrize(
        "other",
        [
            chain(Add(), Neg()),
            chain(Add()),
            chain(Exp(), Add()),
            chain(),
        ],
        ids=["op", "length", "order", "empty"],
    )
    def test_ops_and_their_order_count(self, other):
        assert chain(Add(), Exp()) != other

    def test_operands_count(self):
        a, b, c, d = values(4)
        first = Program((a, b), (Equation(Mul(), [a, a], [c]),), (c,))
        second = Program((a, b), (Equation(Mul(), [a, b], [d]),), (d,))
        assert first != second

    def test_input_types_and_outputs_count(self):
        a, b = values(2)
        weak = Value(ArrayType((3,), np.float32, True))
        assert Program((a,), (), (a,)) != Program((weak,), (), (weak,))
        assert Program((a, b), (), (a,)) != Program((a, b), (), (b,))
        assert Program((a, b), (), (a,)) != Program((a, b), (), (a, a))
        assert Program((a,), (), (a,)) != "program"

    def test_programs_that_ops_hold_are_compared_by_structure(self):
        def calling(inner):
            a, b, c = values(3)
            return Program((a, b), (Equation(Call(inner), [a, b], [c]),), (c,))

        assert calling(chain(Add())) == calling(chain(Add(), name="other"))
        assert calling(chain(Add())) != calling(chain(Mul()))


def test_evaluate_converts_arguments_to_the_input_types():
    a, b, c = values(3)
    program = Program((a, b), (Equation(Add(), [a, b], [c]),), (c, a))
    total, first = evaluate(program, [np.arange(3), np.ones(3)])
    np.testing.assert_array_equal(total, [1, 2, 3])
    assert total.dtype == first.dtype == np.float32


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
