"""PartitionedProgram: a program with its plan and its partition, as the steps after planning exchange it."""

from typing import NamedTuple

from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.propagate.propagate import ShardedProgram


class PartitionedProgram(NamedTuple):
    """A program, its plan, and the program of one device."""

    sharded: ShardedProgram
    plan: LayoutPlan
    local: LocalProgram
