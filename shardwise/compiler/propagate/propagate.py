"""propagate: which layouts every equation could have, given what the user pinned."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.format import format_stage
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.control.region_boundary import Join, Split, Unstack
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.propagate.axis_seeds import Seeds, seed_axes, split_axes
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED, Candidate, candidates, manual_candidates
from shardwise.compiler.propagate.dim_groups import dim_groups
from shardwise.compiler.propagate.output_layouts import infer_output_pins
from shardwise.compiler.propagate.refine import refine_program
from shardwise.compiler.propagate.unfold import Unfolded, unfold
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import refine_pin
from shardwise.errors import ProgramError


@final
@dataclass(frozen=True, eq=False)
class ShardedProgram:
    """A program without calls, on a mesh. `candidates[axis]` has the candidates of every equation that is planned.

    A *free* value (a constant, and what is cheaply computed from constants alone) is made wherever it is needed: it
    has no candidates, constrains nothing and costs nothing.
    """

    program: Program
    mesh: AbstractMesh
    in_pins: tuple[Pin, ...]
    out_pins: tuple[Pin | None, ...]
    unfolded: Unfolded
    free: frozenset[Value]
    candidates: dict[str, dict[Equation, tuple[Candidate, ...]]]

    def __str__(self) -> str:
        outs = ("free" if pin is None else str(pin) for pin in self.out_pins)
        return format_stage("sharded", self.program, self.mesh, map(str, self.in_pins), outs)

    @cached_property
    def pinned(self) -> dict[Value, Pin]:
        """The pin of each input."""
        return dict(zip(self.program.inputs, self.in_pins, strict=True))

    @cached_property
    def planned(self) -> tuple[Equation, ...]:
        """The unfolded equations that are not free."""
        return tuple(e for e in self.unfolded.equations if not (e.outputs and self.free.issuperset(e.outputs)))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every value, those of programs that ops hold too."""
        made = (value for equation in self.unfolded.equations for value in equation.outputs)
        return (*self.program.inputs, *made)


def propagate(
    program: Program, mesh: AbstractMesh, in_pins: Sequence[Pin], out_pins: Sequence[Pin | None]
) -> ShardedProgram:
    """Every equation's candidates on every axis. `program` has no calls.

    Where a reshape needs an axis in pieces, the result is on a finer mesh.
    """
    if len(in_pins) != len(program.inputs) or len(out_pins) != len(program.outputs):
        raise ProgramError(f"{program.name}: {len(in_pins)} pins for inputs and {len(out_pins)} for outputs do not fit")
    if not mesh.axis_names:  # one device: there is nothing to choose
        return ShardedProgram(program, mesh, tuple(in_pins), tuple(out_pins), Unfolded(), frozenset(), {})
    out_pins = infer_output_pins(program, in_pins, out_pins)
    unfolded = unfold(program)
    tied = dim_groups(unfolded.equations)
    pins = _pins(program, unfolded, in_pins, out_pins)
    fine = split_axes(unfolded.equations, mesh, pins, tied)
    if fine != mesh:
        program = refine_program(program, fine)
        in_pins = [refine_pin(pin, mesh, fine) for pin in in_pins]
        out_pins = [pin and refine_pin(pin, mesh, fine) for pin in out_pins]
        unfolded = unfold(program)
        tied = dim_groups(unfolded.equations)
        pins = _pins(program, unfolded, in_pins, out_pins)
    free, scales = _free_values(unfolded)
    sharded = ShardedProgram(program, fine, tuple(in_pins), tuple(out_pins), unfolded, free, {})
    for axis, seeds in seed_axes(unfolded.equations, mesh, fine, pins, tied).items():
        sharded.candidates[axis] = _options(sharded, axis, seeds, scales)
    return sharded


def _pins(
    program: Program, unfolded: Unfolded, in_pins: Sequence[Pin], out_pins: Sequence[Pin | None]
) -> list[tuple[Value, Pin]]:
    """What the user asked of inputs, outputs and constrained values."""
    pins = [(value, pin) for value, pin in zip(program.inputs, in_pins, strict=True)]
    pins += [(value, pin) for value, pin in zip(program.outputs, out_pins, strict=True) if pin]
    for equation in unfolded.equations:
        match equation.op:
            case Constrain():
                pins += [(value, equation.op.pin) for value in (*equation.inputs, *equation.outputs)]
            case Split():
                pins += [(value, equation.op.pin) for value in equation.inputs]
            case Join():
                pins += [(value, equation.op.pin) for value in equation.outputs]
    return pins


def _options(
    sharded: ShardedProgram, axis: str, seeds: Seeds, scales: frozenset[Value]
) -> dict[Equation, tuple[Candidate, ...]]:
    """The candidates of every equation on one axis."""
    size = sharded.mesh.shape[axis]
    manual = sharded.unfolded.manual
    coloured = {}
    for equation in sharded.planned:
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        values = (*equation.inputs, *equation.outputs)
        coloured[equation] = seeds.minor.get(equation, frozenset()) | frozenset(
            [
                factor
                for factor, ((number, dim), *_) in rule.dims_by_leading_factor
                if seeds.has(values[number], dim)
                and (factor not in rule.compound or rule.allows_sharding({factor: size}))
            ]
        )
        if isinstance(equation.op, (Split, Join)):
            coloured[equation] -= equation.op.shard_index_factors
    rows: dict[Equation, tuple[Candidate, ...]] = {}
    partial: set[Value] = set()
    while True:  # a carry can be reached from what stands after it: once more, until nothing is new
        before = len(partial)
        for equation in sharded.planned:
            types = tuple([value.type for value in equation.inputs])
            reached = frozenset([place for place, value in enumerate(equation.inputs) if value in partial])
            scaling = frozenset([place for place, value in enumerate(equation.inputs) if value in scales])
            count = len(equation.outputs)
            if axis in manual.get(equation, ()):
                rows[equation] = manual_candidates(equation.op, types, count, axis)
                continue
            found = candidates(equation.op, types, count, axis, coloured[equation], reached, scaling)
            rows[equation] = _as_given(sharded, axis, equation, found) if isinstance(equation.op, Unstack) else found
            if any(PARTIAL_SUM in candidate.results for candidate in rows[equation]):
                partial.update(equation.outputs)
        if len(partial) == before or not sharded.unfolded.boundaries:
            return rows


def _as_given(
    sharded: ShardedProgram, axis: str, boundary: Equation, options: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """An input that a loop takes in slices stays as the user laid it out, and is brought where it is needed slice by
    slice: the whole of it would be a copy of all layers at once."""
    pin = sharded.pinned.get(boundary.inputs[0])
    if pin is None:
        return options
    dim = pin.layout.dim_of(axis)
    kept = tuple([c for c in options if c.operands[0] == (REPLICATED if dim is None else dim)])
    return kept or options  # where the dim of the slices itself is cut, the loop needs it whole


def _free_values(unfolded: Unfolded) -> tuple[frozenset[Value], frozenset[Value]]:
    """Free values; and those among them that hold one number everywhere, finite and not zero."""
    free: set[Value] = set()
    numbers: dict[Value, Any] = {}
    for equation in unfolded.equations:
        if equation.op.cheap_to_recompute and free.issuperset(equation.inputs):
            free.update(equation.outputs)
            fills = [numbers.get(value) for value in equation.inputs]
            if all(fill is not None for fill in fills):
                with np.errstate(all="ignore"):
                    numbers.update((value, equation.op.padding(fills)) for value in equation.outputs)
    scales = {value for value, number in numbers.items() if number is not None and np.isfinite(number) and number != 0}
    return frozenset(free), frozenset(scales)
