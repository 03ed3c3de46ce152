"""merge_stacks: replace the reshape of a stack by a concatenation, and slices of the inverse reshape by plain slices.

`stack([x, y]).reshape(-1, 64)` is `concatenate([x, y])`, and `z.reshape(2, -1, 64)[:1]` is the first half of `z`, as in
the gradient of a stack. If the rows are sharded, a concatenation or slice exchanges windows between devices. The
reshape would gather the rows, because the sharded rows of a stack are not contiguous shards of the reshaped array.
Values with Explicit shardings are not rewritten, because their types determine every reshard.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Slice

MAX_STACKED = 8  # one all-to-all of a longer stack is cheaper than its many windows


@verifies_result
def merge_stacks(program: Program) -> Program:
    """Merge the stacks of a program, including nested programs.

    Returns:
        The new program, with unused equations; `program` itself if there is nothing to merge.
    """
    producers = {value: equation for equation in program.equations for value in equation.outputs}
    uses = Counter(value for equation in program.equations for value in equation.inputs)
    uses.update(program.outputs)
    slices = Counter(e.inputs[0] for e in program.equations if isinstance(e.op, Slice) and _merged_slice(e, producers))
    equations: list[Equation] = []
    changed = False
    for equation in program.equations:
        op, replaced = equation.op, None
        if isinstance(op, Control):
            nested = op.map_programs(merge_stacks)
            replaced = None if nested is op else [equation.replace(op=nested)]
        elif isinstance(op, Reshape) and uses[equation.inputs[0]] == 1:
            replaced = _concatenate_stack(equation, op, producers)
        elif isinstance(op, Slice) and slices[equation.inputs[0]] == uses[equation.inputs[0]]:
            replaced = _slice_merged(equation, producers)
        changed |= replaced is not None
        equations += replaced or [equation]
    return program.with_equations(equations) if changed else program


def _concatenate_stack(equation: Equation, op: Reshape, producers: dict[Value, Equation]) -> list[Equation] | None:
    """Return the equations that replace the reshape of a stack; None for another reshape, or one that keeps the dim."""
    stack = producers.get(equation.inputs[0])
    if stack is None or not isinstance(stack.op, Concatenate):
        return None
    dim, shape = stack.op.dim, stack.outputs[0].type.shape
    if (
        _has_sharding(*stack.inputs, *equation.outputs)
        or len(stack.inputs) > MAX_STACKED
        or any(value.type.shape[dim] != 1 for value in stack.inputs)
        or not _merges(shape, op.shape, dim)
    ):
        return None
    part_shape = (*shape[:dim], *shape[dim + 1 :])
    parts = {value: _apply(equation, Reshape(part_shape), [value]) for value in dict.fromkeys(stack.inputs)}
    joined = _apply(equation, Concatenate(dim), [parts[value].outputs[0] for value in stack.inputs])
    reshape = equation.replace(op=Reshape(op.shape), inputs=joined.outputs)
    return [*parts.values(), joined, reshape]


def _merged_slice(equation: Equation, producers: dict[Value, Equation]) -> tuple[Equation, int] | None:
    """Return the reshape whose result is sliced along a dim that it splits off, and that dim; None for other slices."""
    op, reshape = equation.op, producers.get(equation.inputs[0])
    if reshape is None or not isinstance(reshape.op, Reshape) or not isinstance(op, Slice) or set(op.stride) - {1}:
        return None
    if _has_sharding(*reshape.inputs, *equation.outputs):
        return None
    shape = reshape.op.shape
    sliced = [dim for dim, size in enumerate(equation.outputs[0].type.shape) if size != shape[dim]]
    if len(sliced) != 1 or not _merges(shape, reshape.inputs[0].type.shape, sliced[0]):
        return None
    return reshape, sliced[0]


def _slice_merged(equation: Equation, producers: dict[Value, Equation]) -> list[Equation] | None:
    """Return the equations that slice the array before the reshape."""
    found = _merged_slice(equation, producers)
    if found is None:
        return None
    reshape, dim = found
    rows = reshape.outputs[0].type.shape[dim + 1]
    shape = _merge(reshape.outputs[0].type.shape, dim)
    start, limit = [0] * len(shape), list(shape)
    start[dim], limit[dim] = (bound[dim] * rows for bound in (equation.op.start, equation.op.limit))  # type: ignore[attr-defined]
    merged = _apply(equation, Reshape(shape), reshape.inputs)
    taken = _apply(equation, Slice(tuple(start), tuple(limit), (1,) * len(shape)), merged.outputs)
    return [merged, taken, equation.replace(op=Reshape(equation.outputs[0].type.shape), inputs=taken.outputs)]


def _has_sharding(*values: Value) -> bool:
    """Return whether a type has a sharding along Explicit axes."""
    return any(value.type.explicit is not None for value in values)


def _merges(shape: tuple[int, ...], merged: tuple[int, ...], dim: int) -> bool:
    """Return whether a reshape from `shape` to `merged` merges `dim` with the next one, both larger than 1."""
    if dim + 1 >= len(shape) or min(shape[dim : dim + 2]) < 2 or 0 in shape:
        return False
    return list(accumulate(shape, mul))[dim] not in accumulate(merged, mul)


def _merge(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return the shape with `dim` and the next dim merged."""
    return (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])


def _apply(at: Equation, op: Op, inputs: Sequence[Value]) -> Equation:
    """Return an equation with a new result, and the source line of the equation `at`."""
    return at.replace(op=op, inputs=list(inputs), outputs=[Value(op.out_type(*(value.type for value in inputs)))])
