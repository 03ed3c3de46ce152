"""lift: a program without the arrays that it holds: they become further inputs, through loops and branches too."""

from typing import Any

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.control import Control, Port
from shardwise.compiler.ops.shape.constants import ArrayConstant


@verifies_result
def lift_constants(program: Program) -> tuple[Program, list[Any]]:
    """A program without calls, with the arrays that it holds as its last inputs; and these arrays."""
    body, held = _lifted(program)
    inputs = (*program.inputs, *(value for value, _ in held))
    return Program(inputs, body, program.outputs, program.name), [op.array.value for _, op in held]


def _lifted(program: Program) -> tuple[tuple[Equation, ...], list[tuple[Value, ArrayConstant]]]:
    """The equations of a program but those that hold arrays, and the values that stand for these."""
    equations: list[Equation] = []
    held: list[tuple[Value, ArrayConstant]] = []
    for equation in program.equations:
        if isinstance(equation.op, ArrayConstant):
            held.append((equation.outputs[0], equation.op))
            continue
        if isinstance(equation.op, Control) and any(
            isinstance(e.op, ArrayConstant) for p in equation.op.programs for e in p.walk()
        ):
            larger, more = _lifted_out(equation, equation.op)
            held += more
            equations.append(larger)
        else:
            equations.append(equation)
    return tuple(equations), held


def _lifted_out(equation: Equation, op: Control) -> tuple[Equation, list[tuple[Value, ArrayConstant]]]:
    """A control op that takes as operands the arrays that its programs hold."""
    programs, ports, held = [], [], []
    for n, program in enumerate(op.programs):
        body, inside = _lifted(program)
        programs.append(program.with_equations(body))
        for value, array in inside:
            outside = Value(value.type)
            group, takers = op.const_groups[n]
            entries = {taker: value if taker == n else Value(value.type) for taker in takers}
            ports.append(Port(group, outside, entries))
            held.append((outside, array))
    own = op.ports(equation.inputs, [p.inputs for p in programs], [p.outputs for p in programs])
    larger, operands, _ = op.rebuild([*own, *ports], programs)
    return equation.replace(op=larger, inputs=operands), held
