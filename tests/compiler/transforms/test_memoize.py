"""memoized: what the key of the cache includes."""

import numpy as np

import shardwise as sw
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.transforms.memoize import memoized


def negation(line: int) -> Program:
    x, y = (Value(ArrayType((3,), np.float32)) for _ in range(2))
    return Program((x,), (Equation(Neg(), [x], [y], Source("a.py", line, "f")),), (y,))


def test_equal_programs_share_a_result_unless_their_lines_differ():
    calls = []
    lines = memoized(8)(lambda program: calls.append(program) or program.sources)
    assert negation(1) == negation(2)
    assert lines(negation(1)) == lines(negation(1)) != lines(negation(2))
    assert len(calls) == 2


def test_settings_are_part_of_the_key():
    calls = []
    count = memoized(8)(lambda program: calls.append(program) or len(calls))
    assert count(negation(1)) == count(negation(1)) == 1
    with sw.config.override("enable_x64", not sw.config.enable_x64):
        assert count(negation(1)) == 2
