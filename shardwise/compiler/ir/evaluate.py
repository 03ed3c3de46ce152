"""A program's meaning, in numpy: each op by its `reference`. The oracle for every later stage."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import NumpyArray, Shards
from shardwise.compiler.ir.program import Equation, Program, Value


def evaluate(program: Program, args: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """The outputs of `program` on `args`."""
    return _run(program, args, lambda equation, operands: equation.op.reference(*operands))


class _Found(Exception):
    """An equation with a bad result of good operands, and these operands."""

    def __init__(self, equation: Equation, operands: list[NumpyArray]):
        self.equation, self.operands = equation, operands


def find_bad_equation(
    program: Program, args: Sequence[NumpyArray], bad: Callable[[NumpyArray], bool]
) -> tuple[Equation, list[NumpyArray]] | None:
    """The first equation with a bad result of good operands, inside loops and branches too; and these operands.

    `program` has no calls.
    """

    def watched(equation: Equation, operands: list[NumpyArray]) -> Any:
        op = equation.op

        def inside(n: int, given: list[Shards]) -> list[Shards]:
            return [[y] for y in _run(op.programs[n], [pieces[0] for pieces in given], watched)]

        if op.programs:
            return tuple(pieces[0] for pieces in op.interpret(inside, [[x] for x in operands]))
        found = op.reference(*operands)
        results = (found,) if op.single else found
        if any(bad(np.asarray(result)) for result in results) and not any(map(bad, operands)):
            raise _Found(equation, operands)
        return found

    try:
        _run(program, args, watched)
    except _Found as found:
        return found.equation, found.operands
    return None


def _run(
    program: Program, args: Sequence[NumpyArray], results_of: Callable[[Equation, list[NumpyArray]], Any]
) -> tuple[NumpyArray, ...]:
    env: dict[Value, NumpyArray] = {
        value: np.asarray(arg, value.type.dtype) for value, arg in zip(program.inputs, args, strict=True)
    }
    for equation in program.equations:
        found = results_of(equation, [env[value] for value in equation.inputs])
        results = (found,) if equation.op.single else found
        for value, result in zip(equation.outputs, results, strict=True):
            env[value] = np.asarray(result, value.type.dtype)
    return tuple(env[value] for value in program.outputs)
