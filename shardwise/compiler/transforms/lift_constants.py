"""lift_constants: turn the arrays that a program holds as constants into inputs, inside loops and branches too."""

from typing import Any

from shardwise.compiler.ir.control import Control, Port
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.shape.constants import ArrayConstant


@verifies_result
def lift_constants(program: Program) -> tuple[Program, list[Any]]:
    """Turn the arrays that a program holds as constants into its last inputs.

    Args:
        program: a program without calls.

    Returns:
        The program with more inputs, and the arrays to pass for them.
    """
    body, held = _lift_equations(program)
    inputs = (*program.inputs, *(value for value, _ in held))
    return Program(inputs, body, program.outputs, program.name), [op.array.value for _, op in held]


def _lift_equations(program: Program) -> tuple[tuple[Equation, ...], list[tuple[Value, ArrayConstant]]]:
    """Return the equations of a program without its array constants, and these constants with their values."""
    equations: list[Equation] = []
    held: list[tuple[Value, ArrayConstant]] = []
    for equation in program.equations:
        if isinstance(equation.op, ArrayConstant):
            held.append((equation.outputs[0], equation.op))
            continue
        if isinstance(equation.op, Control) and any(
            isinstance(e.op, ArrayConstant) for p in equation.op.programs for e in p.walk()
        ):
            larger, more = _lift_from_control(equation, equation.op)
            held += more
            equations.append(larger)
        else:
            equations.append(equation)
    return tuple(equations), held


def _lift_from_control(equation: Equation, op: Control) -> tuple[Equation, list[tuple[Value, ArrayConstant]]]:
    """Return a control op with the array constants of its programs as further operands, and these operands."""
    programs, ports, held = [], [], []
    for n, program in enumerate(op.programs):
        body, inner_held = _lift_equations(program)
        programs.append(program.with_equations(body))
        for value, array in inner_held:
            outside = Value(value.type)
            group, takers = op.const_groups[n]
            entries = {taker: value if taker == n else Value(value.type) for taker in takers}
            ports.append(Port(group, outside, entries))
            held.append((outside, array))
    own = op.ports(equation.inputs, [p.inputs for p in programs], [p.outputs for p in programs])
    larger, operands, _ = op.rebuild([*own, *ports], programs)
    return equation.replace(op=larger, inputs=operands), held
