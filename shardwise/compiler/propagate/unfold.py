"""unfold: a program, and the programs that its ops hold, as one flat list of equations in which layouts are chosen.

A control op is replaced by the equations of its programs and by one equation per binding, whose op is the boundary op.
The carry of a loop reads a value that is defined later, so the list need not define values before it uses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.collective.named import Named
from shardwise.compiler.ops.control.control import Control, Endpoint
from shardwise.compiler.ops.control.manual import Manual

Regions = Mapping[str, tuple[str, ...]]
ASSUMED_TRIP_COUNT = 16  # of a loop whose length is not known


class BoundarySlot(NamedTuple):
    """An operand or a result of a boundary equation, by its number."""

    equation: Equation
    number: int


@final
@dataclass(frozen=True)
class RegionBoundary:
    """For each operand, result, entry and exit of a control op, its slot in a boundary equation."""

    operands: tuple[BoundarySlot, ...]
    results: tuple[BoundarySlot, ...]
    entries: tuple[tuple[BoundarySlot, ...], ...]
    exits: tuple[tuple[BoundarySlot, ...], ...]


@final
@dataclass(frozen=True, eq=False)
class Unfolded:
    """A program as one flat list of equations.

    Attributes:
        equations: all equations, with one region boundary equation for each binding of a control op.
        boundaries: where the values of each control op are among its region boundary equations.
        run_counts: how often each equation runs, and how often each value is computed.
        manual: the mesh axes that are not planned for an equation because it is in a manual region or on its boundary.
    """

    equations: list[Equation] = field(default_factory=list)
    boundaries: dict[Equation, RegionBoundary] = field(default_factory=dict)
    run_counts: dict[Equation | Value, int] = field(default_factory=dict)
    manual: dict[Equation, frozenset[str]] = field(default_factory=dict)


def unfold(program: Program) -> Unfolded:
    """The flat list. No two ops of `program` hold the same program."""
    found = Unfolded()
    _unfold(program, 1, {}, found)
    return found


def _unfold(program: Program, times: int, named: Regions, found: Unfolded) -> None:
    """`named`: the axes of the manual regions around, and what they are made of."""
    held = frozenset(part for parts in named.values() for part in parts)
    found.run_counts.update(dict.fromkeys(program.inputs, times))
    for equation in program.equations:
        found.run_counts.update(dict.fromkeys(equation.outputs, times))
        if isinstance(equation.op, Control):
            _unfold_control(equation, equation.op, times, named, found)
            continue
        if isinstance(equation.op, Named) and not equation.op.axis_names <= named.keys():
            raise equation.op.unbound()
        found.equations.append(equation)
        found.run_counts[equation] = times
        if held:
            found.manual[equation] = held


def _unfold_control(equation: Equation, op: Control, times: int, named: Regions, found: Unfolded) -> None:
    inside = {**named, **op.mesh_axes} if isinstance(op, Manual) else named
    held = frozenset(part for parts in inside.values() for part in parts)
    often = times * max(1, ASSUMED_TRIP_COUNT if op.trip_count is None else op.trip_count)
    values = {
        "operand": [equation.inputs],
        "result": [equation.outputs],
        "entry": [program.inputs for program in op.programs],
        "exit": [program.outputs for program in op.programs],
    }
    places: dict[Endpoint, BoundarySlot] = {}
    late = []
    for binding in op.bindings:
        taken, given = (
            [values[end.kind][end.program][end.number] for end in ends] for ends in (binding.sources, binding.targets)
        )
        boundary = Equation(binding.boundary, taken, given, equation.source)
        found.run_counts[boundary] = often
        if held:
            found.manual[boundary] = held
        for ends in (binding.sources, binding.targets):
            places.update((end, BoundarySlot(boundary, number)) for number, end in enumerate(ends))
        if all(end.kind == "exit" for end in binding.sources):
            late.append(boundary)
        else:
            found.equations.append(boundary)
    for program in op.programs:
        _unfold(program, often, inside, found)
    found.equations.extend(late)

    def numbered(kind: str, program: int = 0) -> tuple[BoundarySlot, ...]:
        ends = [end for end in places if end.kind == kind and end.program == program]
        return tuple(places[end] for end in sorted(ends, key=lambda end: end.number))

    numbers = range(len(op.programs))
    found.boundaries[equation] = RegionBoundary(
        numbered("operand"),
        numbered("result"),
        tuple(numbered("entry", n) for n in numbers),
        tuple(numbered("exit", n) for n in numbers),
    )
