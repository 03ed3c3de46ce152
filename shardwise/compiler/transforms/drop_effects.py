"""silence: a program, or an op that holds programs, without effects: for computing again what was computed before."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verifies_result


def without_effects(op: Op) -> Op:
    """The op without the effects of its programs; TypeError where something depends on what an effect gives."""
    if not op.effect:
        return op
    if op.programs:
        return op.map_programs(drop_effects)
    raise TypeError(f"`{op.name}` has an effect, which cannot be repeated")


@verifies_result
def drop_effects(program: Program) -> Program:
    """The program without effects; TypeError where something depends on what an effect gives."""
    if not program.effect:
        return program
    equations = []
    for equation in program.equations:
        if equation.op.effect and program.used.isdisjoint(equation.outputs):
            continue
        try:
            op = without_effects(equation.op)
        except TypeError as error:
            raise TypeError(f"{error}: at {equation.source} its result is used") from None
        equations.append(equation.replace(op=op))
    return program.with_equations(equations)
