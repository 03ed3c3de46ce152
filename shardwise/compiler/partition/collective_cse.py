"""share: what is sent twice is sent once. Collectives that do the same with the same pieces are one."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.control.control import Control


def share(program: Program) -> Program:
    """`program` with equal collectives merged, inside ops that hold programs too; the same one where none are."""
    same: dict[Value, Value] = {}
    seen: dict[tuple[Op, tuple[Value, ...]], tuple[Value, ...]] = {}
    kept: list[Equation] = []
    changed = False
    for equation in program.equations:
        op = equation.op
        inputs = tuple([same.get(value, value) for value in equation.inputs]) if same else equation.inputs
        if isinstance(op, Collective):
            first = seen.setdefault((op, inputs), equation.outputs)
            if first is not equation.outputs:
                same.update(zip(equation.outputs, first, strict=True))
                changed = True
                continue
        elif isinstance(op, Control):
            programs = [share(inner) for inner in op.programs]
            if any(new is not old for new, old in zip(programs, op.programs, strict=True)):
                op = op.with_programs(programs)
        if op is equation.op and inputs == equation.inputs:
            kept.append(equation)
        else:
            changed = True
            kept.append(Equation(op, inputs, equation.outputs, equation.source, equation.reason))
    if not changed:
        return program
    return Program(program.inputs, tuple(kept), tuple(same.get(v, v) for v in program.outputs), program.name)
