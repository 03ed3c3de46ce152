"""inline: replace every call by the equations of its program, and copy shared programs so that each is used once."""

from collections.abc import Sequence
from functools import partial

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result


@verifies_result
def inline(program: Program, opaque: bool = True) -> Program:
    """Inline the calls of a program, including nested programs.

    Inlined equations keep their source lines, with the named scopes of the call added. Programs that control ops hold
    are copied: every equation of the result is a distinct object.

    Args:
        program: the program.
        opaque: whether to inline opaque calls too, which have their own transformation rules.
    """
    if not any(equation.op.programs for equation in program.equations):
        return program
    equations, outputs = _inline_equations(program, program.inputs, opaque)
    return program.with_equations(equations, outputs)


def _inline_equations(
    program: Program, inputs: Sequence[Value], opaque: bool, scope: tuple[str, ...] = ()
) -> tuple[list[Equation], list[Value]]:
    """Return the equations and outputs of a program for the given inputs. All values but the inputs are new."""
    new_values: dict[Value, Value] = dict(zip(program.inputs, inputs, strict=True))
    equations: list[Equation] = []
    for equation in program.equations:
        operands = [new_values[value] for value in equation.inputs]
        op, source = equation.op, equation.source.within(scope)
        if op.is_call and (opaque or not op.opaque):
            body, results = _inline_equations(op.inlined_program, operands, opaque, source.scope)
            equations += body
        else:
            if isinstance(op, Control):
                op = op.map_programs(partial(inline_copy, opaque=opaque, scope=source.scope))
            results = [Value(value.type) for value in equation.outputs]
            equations.append(equation.replace(op=op, inputs=operands, outputs=results, source=source))
        new_values.update(zip(equation.outputs, results, strict=True))
    return equations, [new_values[value] for value in program.outputs]


@verifies_result
def inline_copy(program: Program, opaque: bool = True, scope: tuple[str, ...] = ()) -> Program:
    """Return a copy with values of its own, in which calls are inlined. `scope` is added around its source lines."""
    inputs = tuple(Value(value.type) for value in program.inputs)
    equations, outputs = _inline_equations(program, inputs, opaque, scope)
    return Program(inputs, tuple(equations), tuple(outputs), program.name)
