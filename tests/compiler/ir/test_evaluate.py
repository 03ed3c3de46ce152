"""evaluate: types of arguments."""

import numpy as np

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.ops.elementwise.arithmetic import Add
from tests.compiler.ir.values import values


def test_evaluate_converts_arguments_to_the_input_types():
    a, b, c = values(3)
    program = Program((a, b), (Equation(Add(), [a, b], [c]),), (c, a))
    total, first = evaluate(program, [np.arange(3), np.ones(3)])
    np.testing.assert_array_equal(total, [1, 2, 3])
    assert total.dtype == first.dtype == np.float32
