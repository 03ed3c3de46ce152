"""merge_factorizations: equal factorizations of equal matrices run once.

`eigvalsh(x)` and `eigh(x)` factor the same matrix, and so do `det(x)` and `solve(x, b)`. XLA merges equal ops, but not
the loops over parts of a batch that factorizations are lowered to on CPU. Their operands are equal if the same ops
compute them, so these ops are merged too: all ops before a factorization, as far as the program has several of it.
"""

from collections import Counter

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result


@verifies_result
def merge_factorizations(program: Program) -> Program:
    """Merge the factorizations of a program, and of nested programs on their own.

    Returns:
        The new program; `program` itself if no two factorizations are equal.
    """
    mergeable = _before_repeated_factorizations(program)
    merged: dict[Value, Value] = {}
    first_results: dict[tuple[Op, tuple[Value, ...]], tuple[Value, ...]] = {}
    equations: list[Equation] = []
    changed = False
    for original in program.equations:
        inputs = tuple(merged.get(value, value) for value in original.inputs)
        if original in mergeable:
            first = first_results.setdefault((original.op, inputs), original.outputs)
            if first is not original.outputs:
                merged.update(zip(original.outputs, first, strict=True))
                changed |= original.op.is_factorization
                continue
        op = original.op.map_programs(merge_factorizations)
        changed |= op is not original.op
        is_same = op is original.op and inputs == original.inputs
        equations.append(original if is_same else original.replace(op=op, inputs=inputs))
    if not changed:
        return program
    return program.with_equations(equations, (merged.get(value, value) for value in program.outputs))


def _before_repeated_factorizations(program: Program) -> set[Equation]:
    """Return the factorizations that a program has several of, and all equations that compute their operands.

    Ops with effects run as often as the program says. A barrier keeps a recomputed value apart from the first one.
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
