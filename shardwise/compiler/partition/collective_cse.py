"""share: what is sent twice is sent once. Collectives that do the same with the same pieces are one."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.control.control import Control


@verifies_result
def merge_equal_collectives(program: Program) -> Program:
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
            op = op.map_programs(merge_equal_collectives)
        if op is equation.op and inputs == equation.inputs:
            kept.append(equation)
        else:
            changed = True
            kept.append(equation.replace(op=op, inputs=inputs))
    if not changed:
        return program
    return program.with_equations(kept, (same.get(value, value) for value in program.outputs))
