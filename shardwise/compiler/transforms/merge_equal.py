"""merge_equal: common-subexpression elimination of some equations, which a pass selects.

XLA merges equal ops itself. A pass selects those that XLA would merge too late or not at all: collectives
(`partition/collective_cse.py`) and factorizations (`merge_factorizations.py`).
"""

from collections.abc import Callable, Collection
from functools import partial

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result


@verifies_result
def merge_equal(program: Program, select: Callable[[Program], Collection[Equation]]) -> Program:
    """Merge the selected equations that apply equal ops to the same values.

    Args:
        program: the program.
        select: returns the equations of a program that may be merged. Nested programs are handled on their own.

    Returns:
        The new program; `program` itself if nothing is merged.
    """
    mergeable = select(program)
    merged: dict[Value, Value] = {}
    first_results: dict[tuple[Op, tuple[Value, ...]], tuple[Value, ...]] = {}
    equations: list[Equation] = []
    changed = False
    for equation in program.equations:
        inputs = tuple([merged.get(value, value) for value in equation.inputs]) if merged else equation.inputs
        if equation in mergeable:
            first = first_results.setdefault((equation.op, inputs), equation.outputs)
            if first is not equation.outputs:
                merged.update(zip(equation.outputs, first, strict=True))
                changed = True
                continue
        op = equation.op.map_programs(partial(merge_equal, select=select))
        if op is equation.op and inputs == equation.inputs:
            equations.append(equation)
        else:
            changed = True
            equations.append(equation.replace(op=op, inputs=inputs))
    if not changed:
        return program
    return program.with_equations(equations, (merged.get(value, value) for value in program.outputs))
