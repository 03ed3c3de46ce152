"""nested_programs: apply a pass to the programs inside a program, such as the bodies of loops."""

from collections.abc import Callable

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Program


def rewrite_nested_programs(program: Program, rewrite: Callable[[Program], Program]) -> Program:
    """Return a program with rewritten nested programs; `program` itself if `rewrite` returns all of them unchanged.

    Programs inside nested ones are up to `rewrite`.
    """
    equations = []
    for equation in program.equations:
        op = equation.op
        nested = op.map_programs(rewrite) if isinstance(op, Control) else op
        equations.append(equation if nested is op else equation.replace(op=nested))
    is_same = all(new is old for new, old in zip(equations, program.equations, strict=True))
    return program if is_same else program.with_equations(equations)
