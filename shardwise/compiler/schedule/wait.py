"""wait: barriers that let an equation wait for others that it does not need."""

from collections.abc import Iterator, Mapping, Sequence

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.identities import Barrier


def let_wait(program: Program, waiting: Mapping[Equation, Sequence[Equation]], numbers: Iterator[int]) -> Program:
    """Return the program in which equations wait for others. An equation may stand before one that it waits for.

    Args:
        program: the program.
        waiting: for each equation that waits, those that it waits for.
        numbers: the numbers of barriers.
    """
    renamed = {value: Value(value.type) for others in waiting.values() for other in others for value in other.outputs}
    equations: list[Equation] = []
    for equation in program.equations:
        inputs = [renamed.get(value, value) for value in equation.inputs]
        if equation in waiting:
            barrier, operand = Barrier(next(numbers)), Value(inputs[0].type)
            passed = {value: renamed[value] for other in waiting[equation] for value in other.outputs}
            passed[inputs[0]] = operand
            equations += [Equation(barrier, [old], [new], equation.source) for old, new in passed.items()]
            inputs[0] = operand
        equations.append(equation.replace(inputs=inputs))
    return program.with_equations(equations, [renamed.get(value, value) for value in program.outputs])
