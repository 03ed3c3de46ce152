"""narrow_gathers: convert the stacks that loops gather to a smaller dtype before they are gathered.

A step that accumulates gradients gathers its stacked weights once, before the loop over microbatches. The loop over
layers inside converts a slice of the weights to the dtype of the compute. Then the entire stack is converted first: the
gather sends half of the bytes, and the gathered copy is half as large. Stacks that are not gathered before the loop are
not converted, because a converted stack only takes memory there.
"""

from dataclasses import replace

from shardwise.compiler.candidates.layout_problem import rebuild
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.search.gather_in_loops import gathered_entries
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.hoist import hoist_from_slices


def narrow_gathers(program: PartitionedProgram, cache: IdentityCache | None = None) -> PartitionedProgram:
    """Return the program with such stacks converted first, planned again; the program itself if it then sends more.

    Args:
        program: the program, without restrictions for memory.
        cache: a cache of cost tables that may be shared between plans for the same chip.
    """
    problem, chip = program.problem, program.plan.chip
    if problem.shardings:  # the types of new values along Explicit axes would be unknown
        return program
    gathered = {equation.inputs[0] for equation, _, _ in gathered_entries(program)}
    narrowed = hoist_from_slices(problem.program, gathered) if gathered else problem.program
    if narrowed is problem.program:
        return program
    rebuilt = replace(rebuild(problem, dce(narrowed)), requested_out_pins=problem.requested_out_pins)
    if rebuilt.mesh != problem.mesh:
        return program
    plan = choose(rebuilt, chip, cache)
    local = partition(rebuilt, plan)
    return PartitionedProgram(rebuilt, plan, local) if local.sent < program.local.sent else program
