"""improve: plan a program again around its costliest collectives, and keep the best plan (setting `improve_plans`).

`choose` decides for one mesh axis at a time, by the bytes of each reshard. It does not see that the axes of a dim may
have the wrong order, or how long kernels take with the layouts that result. Here whole plans are compared, by the times
of their kernels and collectives. Each attempt pins one value near the costliest collective to another layout. What the
user pinned stays as it is, and so do the layouts of outputs: those of a training step are the inputs of the next.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import islice

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.pin_candidates import inserted_collectives, pin_candidates
from shardwise.compiler.report.replan import replan_limit, replan_with_pin
from shardwise.compiler.report.timeline import timeline

MAX_ROUNDS = 4  # each starts from the best plan of the one before
MAX_ATTEMPTS = 12  # in a round
TIME_RATIO = 0.99  # a plan must be at least one percent faster to be taken
MEMORY_RATIO = 1.05  # and may need only little more memory: gathering everything once would always be fast


def improve(program: PartitionedProgram, donated: Collection[int] = ()) -> PartitionedProgram:
    """Return the program with the fastest plan that is found.

    Args:
        program: the program and its plan.
        donated: the inputs whose buffers are reused for outputs.
    """
    for _ in range(MAX_ROUNDS):
        improved = _improve_costliest(program, donated)
        if improved is program:
            break
        program = improved
    return program


def _improve_costliest(program: PartitionedProgram, donated: Collection[int]) -> PartitionedProgram:
    """Return the fastest of the plan and the attempts around its costliest collective."""
    sharded, plan, local = program
    inserted = inserted_collectives(sharded, local)
    if not inserted:
        return program
    chip = replace(plan.chip, overlaps=False)  # a collective that is hidden now may be exposed by the next change
    costliest = max(inserted, key=lambda equation: _seconds(equation, local, chip))
    reused = dict.fromkeys(donated, 0)
    now = timeline(local, chip, donated=reused, lists_alive=False)
    best, best_seconds = program, TIME_RATIO * now.seconds
    attempts = replan_limit(sharded, 2, MAX_ATTEMPTS)
    for value, layout in islice(pin_candidates(sharded, plan, costliest), attempts):
        attempt = replan_with_pin(sharded, value, layout, plan.chip, "a pin of the planner")
        if attempt.plan.outputs != plan.outputs or attempt.local.sent >= best.local.sent:
            continue
        after = timeline(attempt.local, chip, donated=reused, lists_alive=False)
        if after.seconds < best_seconds and after.peak_bytes <= MEMORY_RATIO * now.peak_bytes:
            best, best_seconds = attempt, after.seconds
    return best


def _seconds(equation: Equation, local: LocalProgram, chip: Chip) -> float:
    """Return the estimated time of a collective, all runs together."""
    return local.times[equation] * local.collective_seconds(equation, chip)
