"""layout_problem: enumerate the candidates of every equation on every mesh axis, given the user's pins.

The input is a Program without calls, a mesh, and pins for inputs and outputs. The output is a LayoutProblem, from
which `choose` selects one candidate per equation and axis. Candidates follow from the factor rules of ops.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, final

import numpy as np

from shardwise.compiler.candidates.axis_seeds import DimMove, Seeds, seed_axes, split_axes
from shardwise.compiler.candidates.candidate import (
    PARTIAL_SUM,
    Candidate,
    candidates,
    manual_candidates,
    state_along,
)
from shardwise.compiler.candidates.dim_groups import DimGroups, dim_groups
from shardwise.compiler.candidates.explicit_axes import (
    TypedAxis,
    keep_typed,
    typed_axes,
    typed_factors,
    typed_output_pins,
)
from shardwise.compiler.candidates.output_layouts import infer_output_pins
from shardwise.compiler.candidates.refine import refine_program
from shardwise.compiler.candidates.unfold import Unfolded, unfold
from shardwise.compiler.control.region_boundary import Join, Split, Unstack
from shardwise.compiler.ir.control import BoundaryOp
from shardwise.compiler.ir.format import format_stage
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import refine_pin, sub_axes_of
from shardwise.errors import ProgramError

_NONE: frozenset[int] = frozenset()


@final
@dataclass(frozen=True, eq=False)
class LayoutProblem:
    """A program without calls, on a mesh, with the candidates of its equations.

    Attributes:
        program: the program.
        mesh: the mesh; finer than the user's if a reshape needs sub-axes.
        in_pins: the pins of the inputs.
        out_pins: the pins of the outputs; None if the planner chooses.
        unfolded: the program as a flat list of equations.
        free: the free values: constants, and values computed cheaply from constants. Every device computes its own, in
            any layout, so they have no candidates and cost nothing.
        candidates: for each axis, the candidates of every planned equation.
        reduced_in_loops: the carries and stacks of loops that may not be partial, because they would not fit in memory.
        requested_out_pins: the pins of the outputs that the user requested; None for an inferred or a chosen layout.
        out_names: the names of the outputs, for messages.
        user_meshes: the meshes of which one must have axes for the layout of each output; empty if any layout will do.
        shardings: the shardings of values along Explicit axes, from their types.
        moves: changes of the dims that axes may shard, if not those of the pins.
    """

    program: Program
    mesh: AbstractMesh
    in_pins: tuple[Pin, ...]
    out_pins: tuple[Pin | None, ...]
    unfolded: Unfolded
    free: frozenset[Value]
    candidates: dict[str, dict[Equation, tuple[Candidate, ...]]]
    reduced_in_loops: frozenset[Equation] = frozenset()
    requested_out_pins: tuple[Pin | None, ...] = ()
    out_names: tuple[str, ...] = ()
    user_meshes: tuple[AbstractMesh, ...] = ()
    shardings: Mapping[Value, ExplicitSharding] = field(default_factory=dict)
    moves: frozenset[DimMove] = frozenset()

    def __str__(self) -> str:
        outs = ("free" if pin is None else str(pin) for pin in self.out_pins)
        return format_stage("sharded", self.program, self.mesh, map(str, self.in_pins), outs)

    @cached_property
    def pinned(self) -> dict[Value, Pin]:
        """The pin of each input."""
        return dict(zip(self.program.inputs, self.in_pins, strict=True))

    @cached_property
    def constrained_inputs(self) -> dict[Value, Pin]:
        """The pin of each input, and of each result of a constraint on an input: `in_shardings` are such."""
        constraints = {
            equation.outputs[0]: equation.op.pin
            for equation in self.program.equations
            if isinstance(equation.op, Constrain) and equation.inputs[0] in self.pinned
        }
        return {**self.pinned, **constraints}

    @cached_property
    def planned(self) -> tuple[Equation, ...]:
        """The unfolded equations whose results are not free."""
        return tuple(e for e in self.unfolded.equations if not (e.outputs and self.free.issuperset(e.outputs)))

    @cached_property
    def reduced_for_memory(self) -> frozenset[Equation]:
        """The equations that could read partial sums if `reduced_in_loops` were empty."""
        return frozenset((*self.reduced_in_loops, *_leads_to(self, self.reduced_in_loops)))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values, including those of programs that control ops hold."""
        results = (value for equation in self.unfolded.equations for value in equation.outputs)
        return (*self.program.inputs, *results)


def format_candidates(problem: LayoutProblem) -> str:
    """Return the text of the candidates: for each axis, a line for each planned equation."""
    blocks = [
        [
            f"candidates along {axis!r} {{",
            *(f"  {equation.op.name}: {' | '.join(map(str, options))}" for equation, options in by_equation.items()),
            "}",
        ]
        for axis, by_equation in problem.candidates.items()
    ]
    return "\n".join(line for block in blocks for line in block)


def _leads_to(problem: LayoutProblem, boundaries: Iterable[Equation]) -> Iterator[Equation]:
    """Yield equations through which partial sums could reach the last operand of these boundary equations."""
    producers = {value: equation for equation in problem.planned for value in equation.outputs}
    pending = [producers[boundary.inputs[-1]] for boundary in boundaries if boundary.inputs[-1] in producers]
    seen: set[Equation] = set()
    while pending:
        equation = pending.pop()
        options = (candidate for rows in problem.candidates.values() for candidate in rows[equation])
        if equation not in seen and any(PARTIAL_SUM in candidate.operands for candidate in options):
            seen.add(equation)
            yield equation
            if not isinstance(equation.op, BoundaryOp):
                pending += [producers[value] for value in equation.inputs if value in producers]


def reduce_in_loops(problem: LayoutProblem, boundaries: Iterable[Equation]) -> LayoutProblem:
    """Return the program without the candidates in which these carries and stacks of loops are partial.

    The loop then reduces them in every iteration, and not once after the last one.
    """
    reduced = frozenset(boundaries)
    candidates = {
        axis: {
            equation: tuple([c for c in options if PARTIAL_SUM not in c.results]) if equation in reduced else options
            for equation, options in rows.items()
        }
        for axis, rows in problem.candidates.items()
    }
    return replace(problem, candidates=candidates, reduced_in_loops=problem.reduced_in_loops | reduced)


@final
@dataclass(frozen=True, eq=False)
class ProgramStructure:
    """What propagation computes from a program alone, whatever the pins are.

    Attributes:
        unfolded: the program as a flat list of equations.
        groups: the groups of dims that the equations connect.
    """

    unfolded: Unfolded
    groups: DimGroups

    @classmethod
    def from_program(cls, program: Program) -> "ProgramStructure":
        """Return the structure of a program without calls."""
        unfolded = unfold(program)
        return cls(unfolded, dim_groups(unfolded.equations))

    @cached_property
    def free(self) -> tuple[frozenset[Value], frozenset[Value]]:
        """The free values, and those among them that hold one finite number other than zero in all elements."""
        return free_values(self.unfolded)


def layout_problem(
    program: Program,
    mesh: AbstractMesh,
    in_pins: Sequence[Pin],
    out_pins: Sequence[Pin | None],
    out_names: Sequence[str] = (),
    user_meshes: Sequence[AbstractMesh] = (),
    shardings: Mapping[Value, ExplicitSharding] = MappingProxyType({}),
    structure: ProgramStructure | None = None,
    moves: frozenset[DimMove] = frozenset(),
) -> LayoutProblem:
    """Compute the candidates of all equations on all axes.

    Args:
        program: a program without calls.
        mesh: the mesh. If a reshape needs sub-axes, the result is on a finer mesh.
        in_pins: the pins of the inputs.
        out_pins: the pins of the outputs. Outputs with None get an inferred pin, or none.
        out_names: the names of the outputs, for messages; by default `output 0` and so on.
        user_meshes: the meshes that the user named; the layout of each output is expressed on one of them. If empty,
            outputs may be sharded along sub-axes.
        shardings: the shardings of values along Explicit axes; the other values are replicated along these.
        structure: the structure of the program, if it is known.
        moves: changes of the dims that axes may shard, if not those of the pins.

    Raises:
        ProgramError: if the number of pins differs from the number of inputs or outputs.
    """
    if len(in_pins) != len(program.inputs) or len(out_pins) != len(program.outputs):
        raise ProgramError(
            f"{program.name}: {len(in_pins)} pins for {len(program.inputs)} inputs, "
            f"{len(out_pins)} pins for {len(program.outputs)} outputs"
        )
    names = tuple(out_names) or tuple(f"output {index}" for index in range(len(program.outputs)))
    requested = tuple(out_pins)
    if not mesh.axis_names:  # one device: there is nothing to choose
        return LayoutProblem(
            program,
            mesh,
            tuple(in_pins),
            requested,
            Unfolded(),
            frozenset(),
            {},
            requested_out_pins=requested,
            out_names=names,
            user_meshes=tuple(user_meshes),
        )
    typed = typed_axes(mesh, shardings)
    if typed:
        out_pins = typed_output_pins(program, mesh, out_pins, shardings)
    out_pins = infer_output_pins(program, in_pins, out_pins, names)
    structure = structure or ProgramStructure.from_program(program)
    pins = pinned_values(program, structure.unfolded, in_pins, out_pins)
    fine = split_axes(structure.unfolded.equations, mesh, pins, structure.groups, typed.keys())
    if fine != mesh:
        program = refine_program(program, fine)
        in_pins = [refine_pin(pin, mesh, fine) for pin in in_pins]
        out_pins = [pin and refine_pin(pin, mesh, fine) for pin in out_pins]
        requested = tuple(pin and refine_pin(pin, mesh, fine) for pin in requested)
        sub_axes = sub_axes_of(mesh, fine)
        moves = frozenset([move._replace(axis=axis) for move in moves for axis in sub_axes[move.axis]])
        structure = ProgramStructure.from_program(program)
        pins = pinned_values(program, structure.unfolded, in_pins, out_pins)
    unfolded = structure.unfolded
    free, scales = structure.free
    problem = LayoutProblem(
        program,
        fine,
        tuple(in_pins),
        tuple(out_pins),
        unfolded,
        free,
        {},
        requested_out_pins=requested,
        out_names=names,
        user_meshes=tuple(user_meshes),
        shardings=shardings,
        moves=moves,
    )
    for axis, seeds in seed_axes(unfolded.equations, mesh, fine, pins, structure.groups, moves).items():
        problem.candidates[axis] = candidates_on(problem, axis, seeds, scales, typed.get(axis))
    return problem


def pinned_values(
    program: Program, unfolded: Unfolded, in_pins: Sequence[Pin], out_pins: Sequence[Pin | None]
) -> list[tuple[Value, Pin]]:
    """Return the pinned inputs, outputs, constrained values and values at the boundaries of manual regions."""
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


def candidates_on(
    problem: LayoutProblem,
    axis: str,
    seeds: Seeds,
    scales: frozenset[Value],
    typed: TypedAxis | None,
) -> dict[Equation, tuple[Candidate, ...]]:
    """Return the candidates of all planned equations on one axis; on an Explicit axis, those that types allow."""
    size = problem.mesh.shape[axis]
    manual = problem.unfolded.manual
    factors_of = {}  # for each equation, the factors that the axis may shard
    for equation in problem.planned:
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        values = (*equation.inputs, *equation.outputs)
        if typed is not None and (not typed.mixed or all([typed.types(value) for value in values])):
            factors_of[equation] = typed_factors(equation, rule, typed)
            continue
        # Dims that begin with the same factor are in one dim group, so the first of them stands for all. Any number of
        # devices may shard a simple dim, which is padded; the first factor of a compound dim needs an element for each.
        factors = seeds.minor.get(equation, frozenset()) | frozenset(
            [
                factor
                for factor, ((number, dim), *_) in rule.dims_by_leading_factor
                if seeds.has(values[number], dim)
                and (factor not in rule.compound or rule.allows_sharding({factor: size}))
            ]
        )
        if isinstance(equation.op, (Split, Join)):
            factors -= equation.op.shard_index_factors  # the axes of the region shard them down to single elements
        factors_of[equation] = factors
    candidates_of: dict[Equation, tuple[Candidate, ...]] = {}
    computed_for: dict[Equation, frozenset[int]] = {}  # the partial operands for which the candidates were computed
    partial = {value for value, pin in problem.pinned.items() if pin.layout.is_partial(axis)}
    fresh: set[Value] | None = None  # the values that became partial since the round before; None in the first round
    while True:  # a carry reads a value that is defined later, so this is repeated until no value becomes partial
        before = set(partial)
        for equation in problem.planned:
            inputs = equation.inputs
            if fresh is not None and fresh.isdisjoint(inputs):
                continue
            reads = isinstance(equation.op, BoundaryOp) and equation.op.reads
            partial_operands = _numbers_in(inputs, partial)
            if typed is not None and typed.has_unreduced(equation.outputs):  # the user's types allow any factor
                scale_operands = frozenset(range(len(inputs)))
            else:
                scale_operands = _numbers_in(inputs, scales)
                # A loop would reduce a partial sum that it reads in every iteration, in place of once before it.
                partial_operands = _NONE if reads else partial_operands
            if computed_for.get(equation) == partial_operands:  # nothing else changes between rounds
                continue
            computed_for[equation] = partial_operands
            types = tuple([value.type for value in inputs])
            count = len(equation.outputs)
            if axis in manual.get(equation, ()):
                candidates_of[equation] = manual_candidates(equation.op, types, count, axis)
                if isinstance(equation.op, Join) and axis in equation.op.unreduced:
                    partial.update(equation.outputs)
                continue
            options = candidates(
                equation.op, types, count, axis, factors_of[equation], partial_operands, scale_operands
            )
            if typed is not None:
                options = keep_typed(equation, factor_rule(equation.op, types), options, typed)
            candidates_of[equation] = (
                _keep_pinned(problem, axis, equation, options) if isinstance(equation.op, Unstack) else options
            )
            if any([PARTIAL_SUM in candidate.results for candidate in candidates_of[equation]]):
                partial.update(equation.outputs)
                if fresh is not None:
                    fresh.update(equation.outputs)
        # Without loops and branches, values are defined before they are used, and the first round has seen all.
        if len(partial) == len(before) or not problem.unfolded.boundaries:
            return candidates_of
        fresh = partial - before


def _numbers_in(operands: Sequence[Value], values: AbstractSet[Value]) -> frozenset[int]:
    """Return the numbers of the operands that are among `values`."""
    if values.isdisjoint(operands):
        return _NONE
    return frozenset([index for index, value in enumerate(operands) if value in values])


def _keep_pinned(
    problem: LayoutProblem, axis: str, boundary: Equation, options: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """Return the candidates in which a pinned or constrained input enters the `unstack` of a loop in that layout.

    The loop reshards the input slice by slice. Resharding all of it before the loop would copy all layers at once. If
    the leading dim itself is sharded, the loop needs it replicated, and all candidates are returned.
    """
    pin = problem.constrained_inputs.get(boundary.inputs[0])
    if pin is None:
        return options
    pinned = state_along(pin.layout, axis)
    kept = tuple([c for c in options if c.operands[0] == pinned])
    return kept or options


def free_values(unfolded: Unfolded) -> tuple[frozenset[Value], frozenset[Value]]:
    """Return the free values, and those among them that hold one finite number other than zero in all elements."""
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
