"""improve: plan a program again around its costliest collectives, and keep the best plan (setting `improve_plans`).

`choose` optimizes one mesh axis at a time, by the bytes of each reshard. It does not account for the order of the axes
of a dim, or for kernel times in the resulting layouts. Here entire plans are compared, by the times of their kernels
and collectives. Each move pins one value near the costliest collective to another layout.
"""

from collections.abc import Collection, Iterable, Iterator

from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.search.pins import inserted_collectives, pin_candidates
from shardwise.compiler.search.replan import replan_with_pin
from shardwise.compiler.search.search import INADMISSIBLE, Move, Search, move_limit
from shardwise.compiler.search.time_objective import TimeObjective

MAX_ROUNDS = 4  # each round starts from the best plan of the previous one
MAX_MOVES = 12  # per round


def improve(program: PartitionedProgram, donated: Collection[int] = ()) -> PartitionedProgram:
    """Return the program with the fastest plan that is found.

    Args:
        program: the program and its plan.
        donated: the inputs whose buffers are reused for outputs.
    """
    for _ in range(MAX_ROUNDS):
        limit = move_limit(len(program.problem.unfolded.equations), 2, MAX_MOVES)
        improved = fastest(program, _pins_around_costliest(program), limit, donated)
        if improved is program:
            break
        program = improved
    return program


def fastest(
    program: PartitionedProgram,
    moves: Iterable[Move[None, PartitionedProgram]],
    limit: int,
    donated: Collection[int],
) -> PartitionedProgram:
    """Return the result of the move that makes a program fastest; the program itself if none makes it faster.

    The user's pins and the layouts of outputs do not change: the outputs of a training step are inputs of the next.
    """
    objective = TimeObjective(program.local, program.plan.chip, donated)

    def cost(attempt: PartitionedProgram) -> float:
        return objective(attempt.local) if attempt.plan.outputs == program.plan.outputs else INADMISSIBLE

    search: Search[None, PartitionedProgram, float] = Search(cost, objective.bound, limit)
    best = search.best(moves)
    return program if best is None else best.result


def _pins_around_costliest(program: PartitionedProgram) -> Iterator[Move[None, PartitionedProgram]]:
    problem, plan, local = program
    inserted = inserted_collectives(problem, local)
    if not inserted:
        return
    costliest = max(inserted, key=lambda equation: local.total_seconds(equation, plan.chip))
    for value, layout in pin_candidates(problem, plan, costliest):
        yield Move(
            None,
            lambda value=value, layout=layout: replan_with_pin(  # type: ignore[misc]
                problem, value, layout, plan.chip, "a pin of the planner"
            ),
        )
