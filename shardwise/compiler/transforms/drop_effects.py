"""drop_effects: remove the effects of a program or an op, so that it can be recomputed (remat, while loops)."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verifies_result


def without_effects(op: Op) -> Op:
    """Return the op without the effects of the programs that it holds.

    Raises:
        TypeError: if the op itself has an effect, or an equation uses the result of an op with an effect.
    """
    if not op.effect:
        return op
    if op.programs:
        return op.map_programs(drop_effects)
    raise TypeError(f"`{op.name}` has an effect, which cannot be repeated")


@verifies_result
def drop_effects(program: Program) -> Program:
    """Return the program without its effects.

    Raises:
        TypeError: if an equation uses the result of an op with an effect.
    """
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
