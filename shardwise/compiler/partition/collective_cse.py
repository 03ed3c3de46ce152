"""Common-subexpression elimination of collectives: equal collectives on the same operands run once."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.collectives import Collective


@verifies_result
def merge_equal_collectives(program: Program) -> Program:
    """Return the program with equal collectives merged, in nested programs too; the same object if there are none."""
    replaced: dict[Value, Value] = {}
    first_results: dict[tuple[Op, tuple[Value, ...]], tuple[Value, ...]] = {}
    kept: list[Equation] = []
    changed = False
    for equation in program.equations:
        op = equation.op
        inputs = tuple([replaced.get(value, value) for value in equation.inputs]) if replaced else equation.inputs
        if isinstance(op, Collective):
            first = first_results.setdefault((op, inputs), equation.outputs)
            if first is not equation.outputs:
                replaced.update(zip(equation.outputs, first, strict=True))
                changed = True
                continue
        op = op.map_programs(merge_equal_collectives)
        if op is equation.op and inputs == equation.inputs:
            kept.append(equation)
        else:
            changed = True
            kept.append(equation.replace(op=op, inputs=inputs))
    if not changed:
        return program
    return program.with_equations(kept, (replaced.get(value, value) for value in program.outputs))
