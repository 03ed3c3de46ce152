"""inline: a program with every call replaced by the equations of what it calls; no two ops share a program."""

from collections.abc import Sequence

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.control import Control


def inline(program: Program) -> Program:
    """`program` without calls. Equations keep their own source lines, in the scope of the call that held them.

    Programs that control ops hold are copied, so that every equation of the whole is one object in one place.
    """
    if not any(equation.op.programs for equation in program.equations):
        return program
    equations, outputs = _inlined(program, program.inputs)
    return Program(program.inputs, tuple(equations), tuple(outputs), program.name)


def _inlined(
    program: Program, inputs: Sequence[Value], scope: tuple[str, ...] = ()
) -> tuple[list[Equation], list[Value]]:
    """The equations of a program over these inputs, and its outputs; all values but the inputs are new."""
    known: dict[Value, Value] = dict(zip(program.inputs, inputs, strict=True))
    equations: list[Equation] = []
    for equation in program.equations:
        operands = [known[value] for value in equation.inputs]
        op, source = equation.op, equation.source.within(scope)
        if op.inlined:
            body, results = _inlined(op.programs[0], operands, source.scope)
            equations += body
        else:
            if isinstance(op, Control):
                op = op.with_programs([_copied(inner, source.scope) for inner in op.programs])
            results = [Value(value.type) for value in equation.outputs]
            equations.append(Equation(op, operands, results, source, equation.reason))
        known.update(zip(equation.outputs, results, strict=True))
    return equations, [known[value] for value in program.outputs]


def _copied(program: Program, scope: tuple[str, ...]) -> Program:
    inputs = tuple(Value(value.type) for value in program.inputs)
    equations, outputs = _inlined(program, inputs, scope)
    return Program(inputs, tuple(equations), tuple(outputs), program.name)
