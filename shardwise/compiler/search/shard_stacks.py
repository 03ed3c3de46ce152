"""shard_stacks: shard the stacks of loops along axes over which they are replicated.

A scan over layers stacks the activations that its backward pass needs. Under tensor parallelism, the activations
between the layers are replicated over the tensor-parallel axis, and so is their stack, often the largest array of the
program. Sharding the stack frees most of it. There are two ways. The forward pass stacks slices of replicated
activations, and the backward pass gathers the slice of each layer. Or the axis may shard the dim in the entire program,
so that ops between the layers are sharded too (sequence parallelism): a sum over the axis is reduce-scattered before
them and gathered after them, which sends as many bytes as the all-reduce. Which of the two sends less depends on the
sizes of activations and weights.
"""

from collections.abc import Iterator
from typing import NamedTuple, final

from shardwise.compiler.candidates.axis_seeds import DimMove
from shardwise.compiler.candidates.layout_problem import LayoutProblem, shard_at_boundaries, with_moves
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.search.gather_in_loops import NEGLIGIBLE, loop_entries


@final
class _ReplicatedStack(NamedTuple):
    """A stack that could be sharded along one more axis.

    Attributes:
        equation: the boundary equation that stacks the outputs of a loop.
        axis: the axis over which the stack is replicated.
        dim: the dim to shard.
        freed: the bytes by which the stack on each device shrinks.
    """

    equation: Equation
    axis: str
    dim: int
    freed: float


def shard_stacks(program: PartitionedProgram, excess: float, opens_dims: bool = False) -> LayoutProblem | None:
    """Return the program in which the largest stacks are sharded along further axes.

    Args:
        program: the program and its plan.
        excess: the bytes to free. As many stacks as needed are sharded, or all of them.
        opens_dims: whether the axes may shard the dims in the entire program, and not only in the stacks.

    Returns:
        The program with other candidates; None if no stack can be sharded further.
    """
    chosen: list[_ReplicatedStack] = []
    stacks = [stack for stack in _replicated_stacks(program) if stack.freed > NEGLIGIBLE * excess]
    for stack in sorted(stacks, key=lambda stack: -stack.freed):
        if excess <= 0:
            break
        if all(stack.equation is not other.equation for other in chosen):  # one axis of a stack at a time
            chosen.append(stack)
            excess -= stack.freed
    if not chosen:
        return None
    problem = program.problem
    moves = {DimMove(stack.axis, None, (stack.equation.outputs[0], stack.dim)) for stack in chosen}
    moved = with_moves(problem, moves) if opens_dims else problem
    if moved is None:
        return None
    dims = {stack.equation: {stack.axis: stack.dim} for stack in chosen}
    sharded = {stack.equation.outputs[0]: dims[stack.equation] for stack in chosen}
    for equation in loop_entries(problem):
        if equation.inputs[0] in sharded:  # the backward pass reads the shards slice by slice
            dims[equation] = sharded[equation.inputs[0]]
    return shard_at_boundaries(moved, dims)


def _replicated_stacks(program: PartitionedProgram) -> Iterator[_ReplicatedStack]:
    """Yield the stacks that an axis does not shard and could shard evenly, along their first such dim.

    Stacks that are outputs of the program are omitted, because their layouts are chosen otherwise, and so are stacks
    with types along Explicit axes, Explicit axes, and the axes of manual regions.
    """
    problem, mesh = program.problem, program.problem.mesh
    outputs = set(problem.program.outputs)
    for equation in problem.planned:
        if not equation.op.writes_slices or equation.outputs[0] in outputs or equation.outputs[0] in problem.shardings:
            continue
        (stack,), (layout,) = equation.outputs, program.plan.choices[equation].results
        for axis in mesh.auto_axes:
            if mesh.shape[axis] == 1 or axis in problem.unfolded.manual.get(equation, ()):
                continue
            if axis in layout.axes or layout.is_partial(axis):
                continue
            dims = [
                dim
                for dim in range(1, stack.type.ndim)
                if stack.type.shape[dim] and stack.type.shape[dim] % mesh.extent((*layout.dims[dim], axis)) == 0
            ]
            if dims:
                dim = min(dims, key=lambda dim: bool(layout.dims[dim]))
                stack_bytes = stack.type.nbytes / mesh.extent(layout.axes)
                yield _ReplicatedStack(equation, axis, dim, stack_bytes * (1 - 1 / mesh.shape[axis]))
