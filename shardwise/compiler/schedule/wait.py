"""wait: barriers that let equations wait for others that they do not need."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ops.elementwise.identities import Barrier


class Wait(NamedTuple):
    """Equations that wait, and those that they wait for. No other wait has one of them on the same side."""

    waiting: Sequence[Equation]
    others: Sequence[Equation]


def let_wait(program: Program, waits: Sequence[Wait], numbers: Iterator[int]) -> Program:
    """Return the program in which equations wait for others. An equation may stand before one that it waits for.

    Args:
        program: the program.
        waits: the waits. Each becomes one barrier, before the first equation that waits. If none waits, the barrier is
            after the last of the others, and all that needs them waits.
        numbers: the numbers of barriers.
    """
    renamed = {value: Value(value.type) for wait in waits for other in wait.others for value in other.outputs}
    held = {equation: wait for wait in waits for equation in wait.waiting}
    place = {equation: number for number, equation in enumerate(program.equations)}
    after = {max(wait.others, key=place.__getitem__): wait for wait in waits if not wait.waiting and wait.others}
    operands: dict[Equation, Value] = {}  # what a barrier returns for the first operand of an equation that waits
    equations: list[Equation] = []

    def add_barrier(wait: Wait, source: Source) -> None:
        barrier = Barrier(next(numbers))
        results = {value for other in wait.others for value in other.outputs}
        passed = {value: renamed[value] for other in wait.others for value in other.outputs}
        for each in wait.waiting:
            value = each.inputs[0]
            operands[each] = passed.setdefault(value, Value(value.type))
        equations.extend(
            Equation(barrier, [old if old in results else renamed.get(old, old)], [new], source)
            for old, new in passed.items()
        )

    for equation in program.equations:
        if equation in held and equation not in operands:
            add_barrier(held[equation], equation.source)
        inputs = [renamed.get(value, value) for value in equation.inputs]
        if equation in operands:
            inputs[0] = operands[equation]
        equations.append(equation.replace(inputs=inputs))
        if equation in after:
            add_barrier(after[equation], equation.source)
    return program.with_equations(equations, [renamed.get(value, value) for value in program.outputs])
