"""gather_in_loops: let loop-invariant values enter their loops sharded, and gather them where the loops use them.

A value that a loop reads unchanged, such as the weights of a step that accumulates gradients, is cheapest to gather
once, before the loop. The gathered copy then lives as long as the loop. If that exceeds memory, the value enters the
loop with the sharding in which it was produced, and every iteration gathers what it uses. An inner loop that reads
slices of the value, such as the layers of a model, gathers one slice at a time.
"""

from collections.abc import Iterator, Mapping

from shardwise.compiler.candidates.candidate import state_along
from shardwise.compiler.candidates.layout_problem import BoundaryDims, LayoutProblem, shard_at_boundaries
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.shardings.layout import Layout

NEGLIGIBLE = 1e-3  # the share of the excess below which gathering a value later does not help


def gather_in_loops(program: PartitionedProgram, excess: float) -> LayoutProblem | None:
    """Return the program in which the largest values that are gathered before loops enter the loops sharded.

    Args:
        program: the program and its plan.
        excess: the bytes to free. As many values as needed are changed, or all of them.

    Returns:
        The program with fewer candidates; None if no value is gathered before a loop.
    """
    gathered = {
        equation: (sharded, freed)
        for equation, sharded, freed in gathered_entries(program)
        if freed > NEGLIGIBLE * excess
    }
    entries: dict[Equation, dict[str, int]] = {}
    for equation in sorted(gathered, key=lambda equation: -gathered[equation][1]):
        if excess <= 0:
            break
        sharded, freed = gathered[equation]
        entries[equation] = sharded
        excess -= freed
    if not entries:
        return None
    return shard_at_boundaries(program.problem, {**_entries_of_slices(program.problem, entries), **entries})


def gathered_entries(program: PartitionedProgram) -> Iterator[tuple[Equation, dict[str, int], float]]:
    """Yield the boundary equations of loops whose operand is gathered before the loop.

    Each comes with the axes over which the operand is gathered, the dim that each of them shards, and the bytes that
    the gathered copy holds in addition to the shard.
    """
    problem, choices, mesh = program.problem, program.plan.choices, program.problem.mesh
    layouts: dict[Value, Layout] = {value: pin.layout for value, pin in problem.pinned.items()}
    for equation, choice in choices.items():
        layouts.update(zip(equation.outputs, choice.results, strict=True))
    for equation in loop_entries(problem):
        (value,), (entering,) = equation.inputs, choices[equation].operands
        produced = layouts.get(value)
        if produced is None:
            continue  # a free value
        sharded = {
            axis: dim
            for axis in produced.axes
            if axis not in entering.axes and isinstance(dim := state_along(produced, axis), int)
            if _may_enter(problem, equation, axis, dim)
        }
        if sharded:
            gathered_bytes = value.type.nbytes / mesh.extent(entering.axes)
            yield equation, sharded, gathered_bytes * (1 - 1 / mesh.extent(sharded))


def loop_entries(problem: LayoutProblem) -> Iterator[Equation]:
    """Yield the boundary equations through which a loop reads a value, entirely or in slices."""
    run_counts = problem.unfolded.run_counts
    for equation in problem.planned:
        op = equation.op
        if op.is_boundary and op.reduces_operands_first and run_counts[equation] > run_counts[equation.inputs[0]]:
            yield equation


def _entries_of_slices(problem: LayoutProblem, entries: BoundaryDims) -> BoundaryDims:
    """Return the boundary equations through which inner loops read slices of these values, in the same sharding."""
    entered = {value: sharded for equation, sharded in entries.items() for value in equation.outputs}
    of_slices: dict[Equation, Mapping[str, int]] = {}
    for equation in loop_entries(problem):
        (value,) = equation.inputs
        if equation.op.reads_slices and value in entered:
            dims = entered[value].items()
            of_slices[equation] = {axis: dim for axis, dim in dims if _may_enter(problem, equation, axis, dim)}
    return of_slices


def _may_enter(problem: LayoutProblem, equation: Equation, axis: str, dim: int) -> bool:
    """Return whether a value may enter a loop with this dim sharded: not the dim along which the loop slices it."""
    return any(candidate.operands[0] == dim for candidate in problem.candidates[axis][equation])
