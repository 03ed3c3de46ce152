"""A program's meaning, in numpy: each op by its `reference`. The oracle for every later stage."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Equation, Program, Value


def evaluate(program: Program, args: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """The outputs of `program` on `args`."""
    env = _inputs(program, args)
    for _ in _steps(program, env):
        pass
    return tuple(env[value] for value in program.outputs)


def find(
    program: Program, args: Sequence[NumpyArray], bad: Callable[[NumpyArray], bool]
) -> tuple[Equation, list[NumpyArray]] | None:
    """The first equation with a bad result of good operands, and these operands."""
    env = _inputs(program, args)
    for equation in _steps(program, env):
        operands = [env[value] for value in equation.inputs]
        if any(bad(env[value]) for value in equation.outputs) and not any(map(bad, operands)):
            return equation, operands
    return None


def _inputs(program: Program, args: Sequence[NumpyArray]) -> dict[Value, NumpyArray]:
    return {value: np.asarray(arg, value.type.dtype) for value, arg in zip(program.inputs, args, strict=True)}


def _steps(program: Program, env: dict[Value, NumpyArray]) -> Iterator[Equation]:
    """Every equation, once its results are in `env`."""
    for equation in program.equations:
        found = equation.op.reference(*(env[value] for value in equation.inputs))
        results = (found,) if equation.op.single else found
        for value, result in zip(equation.outputs, results, strict=True):
            env[value] = np.asarray(result, value.type.dtype)
        yield equation
