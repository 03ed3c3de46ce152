"""wait: barriers that let equations wait for others that they do not need."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.identities import Barrier


class Wait(NamedTuple):
    """Equations that wait, and those that they wait for. No other wait has one of them on the same side."""

    waiting: Sequence[Equation]
    others: Sequence[Equation]


def let_wait(program: Program, waits: Sequence[Wait], numbers: Iterator[int]) -> Program:
    """Return the program in which equations wait for others. An equation may stand before one that it waits for.

    Args:
        program: the program.
        waits: the waits. Each becomes one barrier, before the first equation that waits.
        numbers: the numbers of barriers.
    """
    renamed = {value: Value(value.type) for wait in waits for other in wait.others for value in other.outputs}
    held = {equation: wait for wait in waits for equation in wait.waiting}
    operands: dict[Equation, Value] = {}  # what a barrier returns for the first operand of an equation that waits
    equations: list[Equation] = []
    for equation in program.equations:
        if equation in held and equation not in operands:
            waiting, others = held[equation]
            barrier = Barrier(next(numbers))
            results = {value for other in others for value in other.outputs}
            passed = {value: renamed[value] for other in others for value in other.outputs}
            for each in waiting:
                value = each.inputs[0]
                operands[each] = passed.setdefault(value, Value(value.type))
            equations += [
                Equation(barrier, [old if old in results else renamed.get(old, old)], [new], equation.source)
                for old, new in passed.items()
            ]
        inputs = [renamed.get(value, value) for value in equation.inputs]
        if equation in operands:
            inputs[0] = operands[equation]
        equations.append(equation.replace(inputs=inputs))
    return program.with_equations(equations, [renamed.get(value, value) for value in program.outputs])
