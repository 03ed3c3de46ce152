"""evaluate: run a program in numpy, by the `reference` of each op. It is the oracle of every later stage in tests."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import NumpyArray, Shards
from shardwise.compiler.ir.program import Equation, Program, Value


def evaluate(program: Program, args: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """Return the outputs of `program` for the arguments `args`."""
    return _run(program, args, lambda equation, operands: equation.op.reference(*operands))


class _BadEquation(Exception):
    """Raised inside nested programs to report an equation and its operands."""

    def __init__(self, equation: Equation, operands: list[NumpyArray]):
        self.equation, self.operands = equation, operands


def find_bad_equation(
    program: Program, args: Sequence[NumpyArray], bad: Callable[[NumpyArray], bool]
) -> tuple[Equation, list[NumpyArray]] | None:
    """Find the first equation that computes a bad result from good operands, in loops and branches too.

    Args:
        program: a program without calls.
        args: its arguments.
        bad: a predicate on arrays.

    Returns:
        The equation and its operands; None if no equation introduces a bad value.
    """

    def checked_results(equation: Equation, operands: list[NumpyArray]) -> Any:
        op = equation.op

        def run_inner(n: int, inputs: list[Shards]) -> list[Shards]:
            return [[y] for y in _run(op.programs[n], [shards[0] for shards in inputs], checked_results)]

        if op.programs:
            return tuple(shards[0] for shards in op.interpret(run_inner, [[x] for x in operands]))
        outputs = op.reference(*operands)
        results = (outputs,) if op.single else outputs
        if any(bad(np.asarray(result)) for result in results) and not any(map(bad, operands)):
            raise _BadEquation(equation, operands)
        return outputs

    try:
        _run(program, args, checked_results)
    except _BadEquation as bad_equation:
        return bad_equation.equation, bad_equation.operands
    return None


def _run(
    program: Program, args: Sequence[NumpyArray], results_of: Callable[[Equation, list[NumpyArray]], Any]
) -> tuple[NumpyArray, ...]:
    """Run a program, computing the results of each equation by `results_of(equation, operands)`."""
    env: dict[Value, NumpyArray] = {
        value: np.asarray(arg, value.type.dtype) for value, arg in zip(program.inputs, args, strict=True)
    }
    for equation in program.equations:
        outputs = results_of(equation, [env[value] for value in equation.inputs])
        results = (outputs,) if equation.op.single else outputs
        for value, result in zip(equation.outputs, results, strict=True):
            env[value] = np.asarray(result, value.type.dtype)
    return tuple(env[value] for value in program.outputs)
