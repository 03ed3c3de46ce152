"""fit_memory: keep the program of one device within a memory limit, at the least cost in bytes that it sends.

Two remedies are tried. Gathered copies that are idle are dropped and gathered again (`regather`). Unreduced sums that
loops carry or stack are reduced in every iteration: a reduced sum can be sharded, and an unreduced one cannot. The
program is planned again without unreduced stacks, which often costs only latency; and without the largest carries and
stacks, until the rest fits or none is left.
"""

from collections.abc import Collection, Mapping

from shardwise.compiler.candidates.layout_problem import reduce_in_loops
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.liveness import peak, total_bytes
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.regather import regather_to_fit
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.eliminate import IdentityCache

MAX_REPLANS = 4  # without the largest sums
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
    if total_bytes(program.local.program) <= limit:
        return program
    excess = peak(program.local, donated)[0] - limit
    if excess <= 0:
        return program
    attempts = [program]
    tables = cache or IdentityCache()
    unreduced = _unreduced_bytes(program, excess)
    if stacks := [equation for equation in unreduced if equation.op.writes_slices]:
        attempts.append(_replan(program, stacks, tables))
    for _ in range(MAX_REPLANS):
        if not unreduced:
            break
        program = _replan(program, _largest(unreduced, excess), tables)
        attempts.append(program)
        excess = peak(program.local, donated)[0] - limit
        unreduced = _unreduced_bytes(program, excess) if excess > 0 else {}
    attempts = [a._replace(local=regather_to_fit(a.local, limit, donated)) for a in attempts]
    held = [peak(attempt.local, donated)[0] for attempt in attempts]
    fitting = [attempt for attempt, held_bytes in zip(attempts, held, strict=True) if held_bytes <= limit]
    return min(fitting, key=_communication) if fitting else attempts[held.index(min(held))]


def _communication(program: PartitionedProgram) -> tuple[float, int]:
    """Return the bytes that each device sends in one call, and the number of collectives in which it does."""
    local = program.local
    return local.sent, sum(local.times[equation] for equation in local.collectives())


def _replan(program: PartitionedProgram, reduced: Collection[Equation], cache: IdentityCache) -> PartitionedProgram:
    """Return the program planned again, with these carries and stacks reduced in every iteration."""
    problem = reduce_in_loops(program.problem, reduced)
    plan = choose(problem, program.plan.chip, cache)
    return PartitionedProgram(problem, plan, partition(problem, plan))


def _unreduced_bytes(program: PartitionedProgram, excess: int) -> dict[Equation, float]:
    """Return the unreduced carries and stacks of loops, with the bytes that reduce-scattering each would free.

    Those that free next to nothing of the excess are left out.
    """
    problem, mesh = program.problem, program.problem.mesh
    bytes_of = {}
    for equation in problem.planned:
        if equation.op.accumulates:
            layout = program.plan.choices[equation].results[-1]
            if layout.partial:
                scattered_bytes = equation.outputs[-1].type.nbytes / mesh.extent(layout.axes)
                bytes_of[equation] = scattered_bytes * (mesh.extent(axis for axis, _ in layout.partial) - 1)
    return {equation: freed for equation, freed in bytes_of.items() if freed > NEGLIGIBLE * excess}


def _largest(unreduced: Mapping[Equation, float], excess: float) -> list[Equation]:
    """Return the largest of these sums that have `excess` bytes together, or all of them."""
    largest = []
    for equation in sorted(unreduced, key=lambda equation: -unreduced[equation]):
        if excess <= 0:
            break
        largest.append(equation)
        excess -= unreduced[equation]
    return largest
