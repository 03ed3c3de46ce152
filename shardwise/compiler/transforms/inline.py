"""inline: a program with every call replaced by the equations of what it calls; no two ops share a program."""

from collections.abc import Sequence
from functools import partial

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.control import Control


@verifies_result
def inline(program: Program, opaque: bool = True) -> Program:
    """`program` without calls, or but the `opaque` ones. Equations keep their own source lines, in the scope of the
    call that held them.

    Programs that control ops hold are copied, so that every equation of the whole is one object in one place.
    """
    if not any(equation.op.programs for equation in program.equations):
        return program
    equations, outputs = _inlined(program, program.inputs, opaque)
    return program.with_equations(equations, outputs)


def _inlined(
    program: Program, inputs: Sequence[Value], opaque: bool, scope: tuple[str, ...] = ()
) -> tuple[list[Equation], list[Value]]:
    """The equations of a program over these inputs, and its outputs; all values but the inputs are new."""
    known: dict[Value, Value] = dict(zip(program.inputs, inputs, strict=True))
    equations: list[Equation] = []
    for equation in program.equations:
        operands = [known[value] for value in equation.inputs]
        op, source = equation.op, equation.source.within(scope)
        if op.is_call and (opaque or not op.opaque):
            body, results = _inlined(op.programs[0], operands, opaque, source.scope)
            equations += body
        else:
            if isinstance(op, Control):
                op = op.map_programs(partial(_copied, opaque=opaque, scope=source.scope))
            results = [Value(value.type) for value in equation.outputs]
            equations.append(equation.replace(op=op, inputs=operands, outputs=results, source=source))
        known.update(zip(equation.outputs, results, strict=True))
    return equations, [known[value] for value in program.outputs]


def _copied(program: Program, opaque: bool, scope: tuple[str, ...]) -> Program:
    inputs = tuple(Value(value.type) for value in program.inputs)
    equations, outputs = _inlined(program, inputs, opaque, scope)
    return Program(inputs, tuple(equations), tuple(outputs), program.name)
