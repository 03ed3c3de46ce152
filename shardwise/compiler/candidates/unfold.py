"""unfold: flatten a program and the programs that its control ops hold into one list of equations, for planning.

A control op is replaced by the equations of its programs and by one equation per binding, whose op is the boundary op.
The carry of a loop reads a value that is defined later, so the list need not define values before it uses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shardwise.compiler.ir.control import Control, Endpoint
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.collective.named import unbound_axis_error

Regions = Mapping[str, tuple[str, ...]]  # axis of a manual region → its mesh axes
ASSUMED_TRIP_COUNT = 16  # for loops of unknown length


class BoundarySlot(NamedTuple):
    """An operand or a result of a boundary equation, by its index."""

    equation: Equation
    number: int


@final
@record
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
        boundaries: for each control op, the slots of its values in the boundary equations.
        run_counts: how many times each equation runs and each value is computed in one call.
        manual: the mesh axes that are not planned for an equation because it is in a manual region or on its boundary.
    """

    equations: list[Equation] = field(default_factory=list)
    boundaries: dict[Equation, RegionBoundary] = field(default_factory=dict)
    run_counts: dict[Equation | Value, int] = field(default_factory=dict)
    manual: dict[Equation, frozenset[str]] = field(default_factory=dict)

    def planned(self, free: frozenset[Value]) -> tuple[Equation, ...]:
        """Return the equations that have at least one result that is not free."""
        return tuple([e for e in self.equations if not (e.outputs and free.issuperset(e.outputs))])


def unfold(program: Program) -> Unfolded:
    """Flatten a program without calls, in which no two ops hold the same program."""
    unfolded = Unfolded()
    _unfold(program, 1, {}, unfolded)
    return unfolded


def _unfold(program: Program, times: int, regions: Regions, unfolded: Unfolded) -> None:
    """Add the equations of a program that runs `times` times inside the manual regions `regions`."""
    manual_axes = frozenset(axis for axes in regions.values() for axis in axes)
    unfolded.run_counts.update(dict.fromkeys(program.inputs, times))
    for equation in program.equations:
        unfolded.run_counts.update(dict.fromkeys(equation.outputs, times))
        if isinstance(equation.op, Control):
            _unfold_control(equation, equation.op, times, regions, unfolded)
            continue
        if not equation.op.axis_names <= regions.keys():
            raise unbound_axis_error(equation.op)
        unfolded.equations.append(equation)
        unfolded.run_counts[equation] = times
        if manual_axes:
            unfolded.manual[equation] = manual_axes


def _unfold_control(equation: Equation, op: Control, times: int, regions: Regions, unfolded: Unfolded) -> None:
    """Add the boundary equations of a control op and the equations of its programs."""
    inner_regions = {**regions, **op.mesh_axes}
    manual_axes = frozenset(axis for axes in inner_regions.values() for axis in axes)
    inner_times = times * max(1, ASSUMED_TRIP_COUNT if op.trip_count is None else op.trip_count)
    values = {
        "operand": [equation.inputs],
        "result": [equation.outputs],
        "entry": [program.inputs for program in op.programs],
        "exit": [program.outputs for program in op.programs],
    }
    slots: dict[Endpoint, BoundarySlot] = {}
    exit_boundaries = []  # these follow the equations of the programs
    for binding in op.bindings:
        inputs, outputs = (
            [values[end.kind][end.program][end.number] for end in ends] for ends in (binding.sources, binding.targets)
        )
        boundary = Equation(binding.boundary, inputs, outputs, equation.source)
        unfolded.run_counts[boundary] = inner_times
        if manual_axes:
            unfolded.manual[boundary] = manual_axes
        for ends in (binding.sources, binding.targets):
            slots.update((end, BoundarySlot(boundary, index)) for index, end in enumerate(ends))
        if all(end.kind == "exit" for end in binding.sources):
            exit_boundaries.append(boundary)
        else:
            unfolded.equations.append(boundary)
    for program in op.programs:
        _unfold(program, inner_times, inner_regions, unfolded)
    unfolded.equations.extend(exit_boundaries)

    def slots_of(kind: str, program: int = 0) -> tuple[BoundarySlot, ...]:
        ends = [end for end in slots if end.kind == kind and end.program == program]
        return tuple(slots[end] for end in sorted(ends, key=lambda end: end.number))

    numbers = range(len(op.programs))
    unfolded.boundaries[equation] = RegionBoundary(
        slots_of("operand"),
        slots_of("result"),
        tuple(slots_of("entry", n) for n in numbers),
        tuple(slots_of("exit", n) for n in numbers),
    )
