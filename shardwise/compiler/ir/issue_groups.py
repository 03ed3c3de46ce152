"""issue_groups: the equations that XLA receives as one op: adjacent barriers, and the collectives of a launch."""

from collections.abc import Iterator, Sequence

from shardwise.compiler.ir.program import Equation, Program


def issue_groups(program: Program) -> Iterator[list[Equation]]:
    """Yield equations one by one, but adjacent barriers, and adjacent collectives of one launch, as a group.

    Barriers of a group become one op that waits for all operands, collectives one op that sends all operands.
    """
    group: list[Equation] = []
    for equation in program.equations:
        if equation.op.launch is None and not equation.op.fusion.is_barrier:  # most equations
            if group:
                yield group
                group = []
            yield [equation]
            continue
        if group and not _joins(equation, group):
            yield group
            group = []
        group.append(equation)
    if group:
        yield group


def _joins(equation: Equation, group: Sequence[Equation]) -> bool:
    op, first = equation.op, group[0].op
    if op.launch != first.launch:
        return False
    if op.fusion.is_barrier:
        return first.fusion.is_barrier and all(equation.inputs[0] not in other.outputs for other in group)
    return op.launch is not None
