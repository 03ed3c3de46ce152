"""fit_memory: keep the memory of each device within a limit, at the least cost in bytes sent.

There are two remedies. Idle gathered copies are dropped and gathered again (`regather`). Unreduced sums that loops
carry or stack are reduced in every iteration instead: a reduced sum can be sharded, an unreduced one cannot. The second
remedy replans the program without unreduced stacks, which often costs only latency, and then without the largest
unreduced carries and stacks, until the program fits or none is left.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from shardwise.compiler.candidates.candidate import PARTIAL_SUM
from shardwise.compiler.candidates.layout_problem import LayoutProblem, reduce_in_loops
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.liveness import peak, total_bytes
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.regather import regather_to_fit
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.search.search import Move, Search

MAX_MOVES = 5
NEGLIGIBLE = 1e-3  # the share of the excess below which reducing a sum does not help


def fit_memory(
    program: PartitionedProgram, limit: int, donated: Collection[int] = (), cache: IdentityCache | None = None
) -> PartitionedProgram:
    """Return the program planned so that each device holds at most `limit` bytes, if that is possible.

    Args:
        program: the program, planned without a limit.
        limit: the most bytes that each device should hold.
        donated: the inputs whose buffers are reused for outputs.
        cache: a cache of cost tables that may be shared between plans for the same chip.

    Returns:
        Of the attempts that fit, the one that sends the fewest bytes. If none fits, the one that holds the fewest.
    """
    if total_bytes(program.local.program) <= limit or peak(program.local, donated)[0] <= limit:
        return program

    def regathered(attempt: PartitionedProgram) -> PartitionedProgram:
        return attempt._replace(local=regather_to_fit(attempt.local, limit, donated))

    def cost(attempt: PartitionedProgram) -> tuple[float, ...]:
        """Order plans that fit by bytes sent and launches; plans that do not fit follow, ordered by size."""
        local = attempt.local
        held = peak(local, donated)[0]
        if held > limit:
            return (1, held)
        return (0, local.sent, sum(local.times[equation] for equation in local.collectives()))

    start = regathered(program)
    search: Search[None, PartitionedProgram, tuple[float, ...]] = Search(cost, cost(start), MAX_MOVES)
    moves = _reductions_in_loops(program, limit, donated, cache or IdentityCache())
    best = search.best(Move(None, partial(regathered, attempt)) for attempt in moves)
    return start if best is None else best.result


def _reductions_in_loops(
    program: PartitionedProgram, limit: int, donated: Collection[int], cache: IdentityCache
) -> Iterator[PartitionedProgram]:
    """Yield the program without unreduced stacks, then without its largest unreduced sums, more of them each time."""
    excess = peak(program.local, donated)[0] - limit
    unreduced = _unreduced_bytes(program, excess)
    if stacks := [equation for equation in unreduced if equation.op.writes_slices]:
        yield _replan(program, stacks, cache)
    while unreduced:
        program = _replan(program, _largest(unreduced, excess), cache)
        yield program
        excess = peak(program.local, donated)[0] - limit
        unreduced = _unreduced_bytes(program, excess) if excess > 0 else {}


def _replan(program: PartitionedProgram, reduced: Collection[Equation], cache: IdentityCache) -> PartitionedProgram:
    """Return the program planned again, with these carries and stacks reduced in every iteration."""
    problem = reduce_in_loops(program.problem, reduced)
    plan = choose(problem, program.plan.chip, cache)
    return PartitionedProgram(problem, plan, partition(problem, plan))


def _unreduced_bytes(program: PartitionedProgram, excess: int) -> dict[Equation, float]:
    """Return the unreduced carries and stacks of loops, with the bytes that reduce-scattering each would free.

    Sums that would free a negligible part of the excess are omitted.
    """
    problem, mesh = program.problem, program.problem.mesh
    bytes_of = {}
    for equation in problem.planned:
        if equation.op.accumulates:
            layout = program.plan.choices[equation].results[-1]
            reducible = [axis for axis, _ in layout.partial if _may_be_reduced(problem, equation, axis)]
            if reducible:
                scattered_bytes = equation.outputs[-1].type.nbytes / mesh.extent(layout.axes)
                bytes_of[equation] = scattered_bytes * (mesh.extent(reducible) - 1)
    return {equation: freed for equation, freed in bytes_of.items() if freed > NEGLIGIBLE * excess}


def _may_be_reduced(problem: LayoutProblem, equation: Equation, axis: str) -> bool:
    """Return whether a carry or stack has a candidate that is not partial. An unreduced type permits none."""
    return any(PARTIAL_SUM not in candidate.results for candidate in problem.candidates[axis][equation])


def _largest(unreduced: Mapping[Equation, float], excess: float) -> list[Equation]:
    """Return the largest of these sums, as many as needed to free `excess` bytes, or all of them."""
    largest = []
    for equation in sorted(unreduced, key=lambda equation: -unreduced[equation]):
        if excess <= 0:
            break
        largest.append(equation)
        excess -= unreduced[equation]
    return largest
