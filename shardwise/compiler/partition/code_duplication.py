"""code_duplication: the equations that a fused kernel on CPU computes, without those whose code would be too long.

XLA emits the code of a fused value once for each index with which the kernel reads it. An op that changes the shape,
such as a slice, reads its operand with a new index. So the code of pairs of slices of pairs of slices, as in an
associative scan, doubles with each level. XLA stores a value whose code one kernel would contain more than 15 times
(`FusionNodeIndexingEvaluation` in its sources).
"""

from collections.abc import Sequence

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Transpose

_MOST_COPIES = 15  # of the code of a value in one kernel


def emitted_members(members: Sequence[Equation]) -> list[Equation]:
    """Return the equations that a fused kernel computes. It reads the results of the others from memory.

    Args:
        members: the equations of an expression in topological order. The last one has its result.
    """
    root = members[-1]
    counts: dict[Equation, int] = {}  # how often the code of an equation is emitted
    # The equations that compute the indices with which a value is read.
    indexing: dict[Value, set[Equation]] = {root.outputs[0]: {root}}
    emitted = []
    for equation in reversed(members):
        (result,) = equation.outputs
        if result not in indexing:  # only values in memory depend on it
            continue
        count = 1 if equation is root else sum([counts[other] for other in indexing[result]])
        if count > _MOST_COPIES and not isinstance(equation.op, (Broadcast, Full)):
            continue
        counts[equation] = count
        emitted.append(equation)
        for value in equation.inputs:
            keeps_index = isinstance(equation.op, Transpose) or value.type.shape == result.type.shape
            indexing.setdefault(value, set()).update(indexing[result] if keeps_index else (equation,))
    return emitted[::-1]
