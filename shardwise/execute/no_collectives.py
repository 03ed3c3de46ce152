"""The check of `sharding.no_collectives`: the collectives of a partitioned program avoid the forbidden mesh axes."""

from collections.abc import Iterator, Mapping

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Conversion
from shardwise.compiler.shardings.refine import axis_of_sub_axis
from shardwise.errors import ForbiddenCollectiveError


def check_no_collectives(program: Program, local: LocalProgram) -> None:
    """Raise ForbiddenCollectiveError if an op communicates along an axis that was forbidden where it was traced.

    Args:
        program: the program.
        local: the partitioned program.
    """
    if not any(equation.source.no_collectives for equation in program.walk()):
        return
    producers = {value: equation for equation in program.walk() for value in equation.outputs}
    for collective in local.collectives():
        axes = {axis_of_sub_axis(axis) for axis in collective.op.communicates_along}
        for source in _causes(collective, producers):
            if forbidden := sorted(axes & source.no_collectives):
                raise ForbiddenCollectiveError(
                    f"{source}: a collective, {collective.op.name}, runs along {' and '.join(map(repr, forbidden))}, "
                    "which no_collectives forbids. Keep the values of this line sharded along the axis, leave their "
                    "sum unreduced with out_sharding=P(unreduced={...}), or move the line out of no_collectives."
                )


def _causes(collective: Equation, producers: Mapping[Value, Equation]) -> list[Source]:
    """Return the lines that need a collective: those of the sums that it completes, or else that of its consumer.

    The planner may complete a sum late, at the line of another op.
    """
    if collective.op.reduces_across_devices and isinstance(collective.reason, Conversion):
        sums = [equation.source for equation in _summing_ops(collective.reason.value, producers)]
        return sums or [collective.source]
    return [collective.source]


def _summing_ops(value: Value, producers: Mapping[Value, Equation]) -> Iterator[Equation]:
    """Yield the ops whose sums `value` is, through ops that only pass partial sums on."""
    pending, seen = [value], {value}
    while pending:
        equation = producers.get(pending.pop())
        if equation is None:
            continue
        if equation.op.programs or factor_rule(equation.op, tuple(x.type for x in equation.inputs)).reduce:
            yield equation
            continue
        pending += [x for x in equation.inputs if x not in seen]
        seen.update(equation.inputs)
