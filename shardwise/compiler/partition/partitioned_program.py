"""PartitionedProgram: a program with its plan and its local program, as passes after planning exchange it."""

from typing import NamedTuple

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.plan import LayoutPlan


class PartitionedProgram(NamedTuple):
    """A program, its plan, and the program of one device."""

    problem: LayoutProblem
    plan: LayoutPlan
    local: LocalProgram
