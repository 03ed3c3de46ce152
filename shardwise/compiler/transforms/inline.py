"""inline: replace every call by the equations of its program, and copy shared programs so that each is used once."""

from collections.abc import Callable, Sequence
from functools import partial

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result


def _is_call(op: Op) -> bool:
    return op.is_call


def is_transparent_call(op: Op) -> bool:
    """Return whether an op is a call without transformation rules of its own."""
    return op.is_call and not op.opaque


@verifies_result
def inline(program: Program, inlines: Callable[[Op], bool] = _is_call) -> Program:
    """Inline the calls of a program, including nested programs.

    Inlined equations keep their source lines, with the named scopes of the call added. Programs that control ops hold
    are copied: every equation of the result is a distinct object.

    Args:
        program: the program.
        inlines: which ops to inline; by default all calls.
    """
    if not any(equation.op.programs for equation in program.equations):
        return program
    equations, outputs = _inline_equations(program, program.inputs, inlines)
    return program.with_equations(equations, outputs)


def _inline_equations(
    program: Program, inputs: Sequence[Value], inlines: Callable[[Op], bool], scope: tuple[str, ...] = ()
) -> tuple[list[Equation], list[Value]]:
    """Return the equations and outputs of a program for the given inputs. All values but the inputs are new."""
    new_values: dict[Value, Value] = dict(zip(program.inputs, inputs, strict=True))
    equations: list[Equation] = []
    for equation in program.equations:
        operands = [new_values[value] for value in equation.inputs]
        op, source = equation.op, equation.source.within(scope)
        if inlines(op):
            body, results = _inline_equations(op.inlined_program, operands, inlines, source.scope)
            equations += body
        else:
            if isinstance(op, Control):
                op = op.map_programs(partial(inline_copy, inlines=inlines, scope=source.scope))
            results = [Value(value.type) for value in equation.outputs]
            equations.append(equation.replace(op=op, inputs=operands, outputs=results, source=source))
        new_values.update(zip(equation.outputs, results, strict=True))
    return equations, [new_values[value] for value in program.outputs]


@verifies_result
def inline_copy(program: Program, inlines: Callable[[Op], bool] = _is_call, scope: tuple[str, ...] = ()) -> Program:
    """Return a copy with values of its own, in which calls are inlined. `scope` is added around its source lines."""
    inputs = tuple(Value(value.type) for value in program.inputs)
    equations, outputs = _inline_equations(program, inputs, inlines, scope)
    return Program(inputs, tuple(equations), tuple(outputs), program.name)
