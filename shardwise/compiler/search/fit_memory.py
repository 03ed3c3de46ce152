"""fit_memory: keep the memory of each device within a limit, at the least cost in bytes sent.

There are four remedies. Idle gathered copies are dropped and gathered again (`regather`). The others replan the
program:

- Unreduced sums that loops carry or stack are reduced in every iteration instead: a reduced sum can be sharded, an
  unreduced one cannot. Unreduced stacks are first, because reducing them often costs only latency.
- Values that are gathered before a loop enter it sharded, and are gathered where the loop uses them.
- Stacks of values that a scan saves for its backward pass are sharded over axes over which they are replicated.

Each changes the values with the most bytes first, until the program fits or none is left.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from shardwise.compiler.candidates.candidate import PARTIAL_SUM
from shardwise.compiler.candidates.layout_problem import LayoutProblem, reduce_in_loops
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.liveness import fits_in_memory, peak_bytes
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.regather import regather_to_fit
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.search.gather_in_loops import gather_in_loops
from shardwise.compiler.search.search import Move, Search
from shardwise.compiler.search.shard_stacks import shard_stacks

MAX_MOVES = 12
NEGLIGIBLE = 1e-3  # the share of the excess below which reducing a sum does not help


def fit_any_in_memory(
    programs: Sequence[PartitionedProgram],
    limit: int,
    donated: Collection[int] = (),
    cache: IdentityCache | None = None,
    on_plan: Callable[[LayoutProblem], None] | None = None,
) -> PartitionedProgram:
    """Return the first of several forms of a program that `fit_memory` fits; if none, the form that holds least.

    Args:
        programs: the forms, planned without a limit.
        limit: the most bytes that each device should hold.
        donated: the inputs whose buffers are reused for outputs.
        cache: a cache of cost tables that may be shared between plans for the same chip.
        on_plan: called with every changed program, before it is planned.
    """
    fitted = []
    for program in programs:
        fitted.append(fit_memory(program, limit, donated, cache, on_plan))
        if fits_in_memory(fitted[-1].local, limit, donated, program.plan.chip):
            return fitted[-1]
    return min(fitted, key=lambda each: peak_bytes(each.local, donated, each.plan.chip))


def fit_memory(
    program: PartitionedProgram,
    limit: int,
    donated: Collection[int] = (),
    cache: IdentityCache | None = None,
    on_plan: Callable[[LayoutProblem], None] | None = None,
) -> PartitionedProgram:
    """Return the program planned so that each device holds at most `limit` bytes, if that is possible.

    Args:
        program: the program, planned without a limit.
        limit: the most bytes that each device should hold.
        donated: the inputs whose buffers are reused for outputs.
        cache: a cache of cost tables that may be shared between plans for the same chip.
        on_plan: called with every changed program, before it is planned.

    Returns:
        Of the attempts that fit, the one that sends the fewest bytes. If none fits, the one that holds the fewest.
    """
    chip = program.plan.chip
    if fits_in_memory(program.local, limit, donated, chip):
        return program

    def regathered(attempt: PartitionedProgram) -> PartitionedProgram:
        return attempt._replace(local=regather_to_fit(attempt.local, limit, donated, chip))

    def cost(attempt: PartitionedProgram) -> tuple[float, ...]:
        """Order plans that fit by bytes sent and launches; plans that do not fit follow, ordered by size."""
        local = attempt.local
        held = peak_bytes(local, donated, chip)
        if held > limit:
            return (1, held)
        return (0, local.sent, sum(local.times[equation] for equation in local.collectives()))

    start = regathered(program)
    search: Search[None, PartitionedProgram, tuple[float, ...]] = Search(cost, cost(start), MAX_MOVES)
    moves = _attempts(program, limit, donated, cache or IdentityCache(), on_plan)
    best = search.best(Move(None, partial(regathered, attempt)) for attempt in moves)
    return start if best is None else best.result


# Returns the program with more of its values changed by one remedy, as many as needed to free some bytes; None if there
# is none left.
_Remedy = Callable[[PartitionedProgram, float], LayoutProblem | None]


def _attempts(
    program: PartitionedProgram,
    limit: int,
    donated: Collection[int],
    cache: IdentityCache,
    on_plan: Callable[[LayoutProblem], None] | None,
) -> Iterator[PartitionedProgram]:
    """Yield the program with each remedy alone, and with several, one after the other."""

    def excess(attempt: PartitionedProgram) -> float:
        return peak_bytes(attempt.local, donated, program.plan.chip) - limit

    def replanned(problem: LayoutProblem) -> PartitionedProgram:
        if on_plan is not None:
            on_plan(problem)
        plan = choose(problem, program.plan.chip, cache)
        return PartitionedProgram(problem, plan, partition(problem, plan))

    def apply(attempt: PartitionedProgram, remedy: _Remedy) -> Iterator[PartitionedProgram]:
        """Yield the program with more and more values changed by a remedy, until it fits."""
        while (rest := excess(attempt)) > 0 and (problem := remedy(attempt, rest)) is not None:
            attempt = replanned(problem)
            yield attempt

    if (problem := _reduce_stacks(program, excess(program))) is not None:
        yield replanned(problem)
    last = program
    for remedy in (_reduce_largest_sums, gather_in_loops):
        for attempt in apply(last, remedy):
            last = attempt
            yield attempt
    if last.problem.reduced_in_loops:
        yield from apply(program, gather_in_loops)
    for base in (program,) if last is program else (last, program):
        yield from apply(base, shard_stacks)
        yield from apply(base, partial(shard_stacks, opens_dims=True))


def _reduce_stacks(program: PartitionedProgram, excess: float) -> LayoutProblem | None:
    """Return the program without unreduced stacks; None if it has none."""
    stacks = [equation for equation in _unreduced_bytes(program, excess) if equation.op.writes_slices]
    return reduce_in_loops(program.problem, stacks) if stacks else None


def _reduce_largest_sums(program: PartitionedProgram, excess: float) -> LayoutProblem | None:
    """Return the program without its largest unreduced sums; None if it has none."""
    largest = _largest(_unreduced_bytes(program, excess), excess)
    return reduce_in_loops(program.problem, largest) if largest else None


def _unreduced_bytes(program: PartitionedProgram, excess: float) -> dict[Equation, float]:
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
