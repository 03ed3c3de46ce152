"""Common-subexpression elimination of collectives: equal collectives on the same operands run once."""

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.transforms.merge_equal import merge_equal


@verifies_result
def merge_equal_collectives(program: Program) -> Program:
    """Return the program with equal collectives merged, in nested programs too; the same object if there are none."""
    return merge_equal(program, _collectives)


def _collectives(program: Program) -> set[Equation]:
    return {equation for equation in program.equations if isinstance(equation.op, Collective)}
