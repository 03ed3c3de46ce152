"""Programs: text, and equality by structure."""

import numpy as np
import pytest

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.program import Equation, Program, Reason, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.elementwise.transcendental import Exp
from tests.compiler.ir.values import LINE, values


def test_a_program_prints_as_its_name_and_types():
    a, b = values(2)
    assert repr(Program((a, b), (), (b,), "f")) == "f(f32[3], f32[3]) -> (f32[3])"


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
