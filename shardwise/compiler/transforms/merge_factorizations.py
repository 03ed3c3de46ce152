"""merge_factorizations: equal factorizations of equal matrices run once.

`eigvalsh(x)` and `eigh(x)` factor the same matrix, and so do `det(x)` and `solve(x, b)`. On CPU, a factorization of a
batch is lowered to a loop over parts of the batch, and XLA does not merge equal loops. Two operands are equal if equal
ops compute them. So the ops that compute the operands of a repeated factorization are merged as well.
"""

from collections import Counter

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.transforms.merge_equal import merge_equal


@verifies_result
def merge_factorizations(program: Program) -> Program:
    """Merge the factorizations of a program, and of nested programs on their own.

    Returns:
        The new program; `program` itself if no two factorizations are equal.
    """
    merged = merge_equal(program, _before_repeated_factorizations)
    if merged is program or _factorizations(merged) == _factorizations(program):
        return program  # only ops before factorizations were equal, which XLA merges
    return merged


def _factorizations(program: Program) -> int:
    return sum(equation.op.is_factorization for equation in program.walk())


def _before_repeated_factorizations(program: Program) -> set[Equation]:
    """Return the factorizations that a program has several of, and all equations that compute their operands.

    Ops with effects are never merged. Barriers are not merged either: they keep rematerialized values distinct.
    """
    counts = Counter(equation.op for equation in program.equations if equation.op.is_factorization)
    if all(count == 1 for count in counts.values()):
        return set()
    needed: set[Value] = set()
    mergeable = set()
    for equation in reversed(program.equations):
        op = equation.op
        if counts[op] > 1 or not needed.isdisjoint(equation.outputs):
            needed.update(equation.inputs)
            if not op.effect and not op.programs and not op.fusion.is_barrier:
                mergeable.add(equation)
    return mergeable
