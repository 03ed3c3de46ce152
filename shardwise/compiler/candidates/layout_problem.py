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

from shardwise.compiler.candidates.axis_candidates import PlannedAxis, PlannedEquations, candidates_on
from shardwise.compiler.candidates.axis_seeds import DimMove, other_shards, seed_axes, split_axes
from shardwise.compiler.candidates.candidate import PARTIAL_SUM, Candidate, factor_candidate
from shardwise.compiler.candidates.dim_groups import DimGroups, dim_groups
from shardwise.compiler.candidates.explicit_axes import typed_axes, typed_output_pins
from shardwise.compiler.candidates.output_layouts import infer_output_pins
from shardwise.compiler.candidates.refine import refine_program
from shardwise.compiler.candidates.unfold import Unfolded, unfold
from shardwise.compiler.ir.format import format_stage
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import refine_pin, sub_axes_of
from shardwise.compiler.transforms.host_copies import NO_HOST_ARRAYS, HostArrays
from shardwise.errors import ProgramError

# For each boundary equation of a loop, the axes that shard its value outside the loop, with the dim of each.
BoundaryDims = Mapping[Equation, Mapping[str, int]]


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
        reduced_in_loops: the carries and stacks of loops that may not be partial, because partial they would exceed
            memory.
        sharded_at_boundaries: the values that loops read or stack which must be sharded outside the loops, because
            replicated they would exceed memory.
        requested_out_pins: the user's pins of the outputs; None for an inferred or a chosen layout.
        out_names: the names of the outputs, for messages.
        user_meshes: the user's meshes. Each output layout must be expressible in the axes of one of them; empty if any
            layout is allowed.
        shardings: the shardings of values along Explicit axes, from their types.
        moves: changes to the dims that the pins seed.
        host: the inputs and outputs that are in host memory.
    """

    program: Program
    mesh: AbstractMesh
    in_pins: tuple[Pin, ...]
    out_pins: tuple[Pin | None, ...]
    unfolded: Unfolded
    free: frozenset[Value]
    candidates: dict[str, dict[Equation, tuple[Candidate, ...]]]
    reduced_in_loops: frozenset[Equation] = frozenset()
    sharded_at_boundaries: BoundaryDims = field(default_factory=dict)
    requested_out_pins: tuple[Pin | None, ...] = ()
    out_names: tuple[str, ...] = ()
    user_meshes: tuple[AbstractMesh, ...] = ()
    shardings: Mapping[Value, ExplicitSharding] = field(default_factory=dict)
    moves: frozenset[DimMove] = frozenset()
    host: HostArrays = NO_HOST_ARRAYS

    def __str__(self) -> str:
        outs = ("free" if pin is None else str(pin) for pin in self.out_pins)
        return format_stage("sharded", self.program, self.mesh, map(str, self.in_pins), outs)

    @cached_property
    def pinned(self) -> dict[Value, Pin]:
        """The pin of each input."""
        return dict(zip(self.program.inputs, self.in_pins, strict=True))

    @cached_property
    def planned(self) -> tuple[Equation, ...]:
        """The unfolded equations whose results are not free."""
        return self.unfolded.planned(self.free)

    @cached_property
    def reduced_for_memory(self) -> frozenset[Equation]:
        """The equations that could read partial sums if `reduced_in_loops` were empty."""
        return frozenset((*self.reduced_in_loops, *_leads_to(self, self.reduced_in_loops)))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values, including values of the programs that control ops hold."""
        results = (value for equation in self.unfolded.equations for value in equation.outputs)
        return (*self.program.inputs, *results)


def format_candidates(problem: LayoutProblem) -> str:
    """Format the candidates as a string: per axis, one line per planned equation."""
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
    """Yield the equations through which partial sums could reach the last operand of these boundary equations."""
    producers = {value: equation for equation in problem.planned for value in equation.outputs}
    pending = [producers[boundary.inputs[-1]] for boundary in boundaries if boundary.inputs[-1] in producers]
    seen: set[Equation] = set()
    while pending:
        equation = pending.pop()
        options = (candidate for rows in problem.candidates.values() for candidate in rows[equation])
        if equation not in seen and any(PARTIAL_SUM in candidate.operands for candidate in options):
            seen.add(equation)
            yield equation
            if not equation.op.is_boundary:
                pending += [producers[value] for value in equation.inputs if value in producers]


def reduce_in_loops(problem: LayoutProblem, boundaries: Iterable[Equation]) -> LayoutProblem:
    """Return the program without the candidates in which these carries and stacks of loops are partial.

    The loop then reduces them in every iteration, and not once after the last one. Along an axis on which all
    candidates of a boundary are partial, because its type is unreduced, they stay.
    """
    reduced = frozenset(boundaries)
    candidates = {
        axis: {
            equation: (tuple([c for c in options if PARTIAL_SUM not in c.results]) or options)
            if equation in reduced
            else options
            for equation, options in rows.items()
        }
        for axis, rows in problem.candidates.items()
    }
    return replace(problem, candidates=candidates, reduced_in_loops=problem.reduced_in_loops | reduced)


def shard_at_boundaries(problem: LayoutProblem, boundaries: BoundaryDims) -> LayoutProblem:
    """Return the program with only the candidates in which these values are sharded outside their loops.

    A loop then gathers a value that it reads where it uses it, in every iteration, and not once before the first one. A
    stack of the outputs of all iterations consists of shards. The pins need not seed the dims.
    """
    candidates = {axis: dict(rows) for axis, rows in problem.candidates.items()}
    for equation, dims in boundaries.items():
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        for axis, dim in dims.items():
            # The factors of boundary ops are the dims of the value outside the loop.
            candidates[axis][equation] = (factor_candidate(rule, dim),)
    merged = {
        equation: {**problem.sharded_at_boundaries.get(equation, {}), **boundaries[equation]} for equation in boundaries
    }
    return replace(problem, candidates=candidates, sharded_at_boundaries={**problem.sharded_at_boundaries, **merged})


def rebuild(
    problem: LayoutProblem,
    program: Program | None = None,
    *,
    in_pins: Sequence[Pin] | None = None,
    out_pins: Sequence[Pin | None] | None = None,
    structure: "ProgramStructure | None" = None,
    moves: frozenset[DimMove] | None = None,
) -> LayoutProblem:
    """Compute the candidates again, without restrictions for memory. What is not given is as in `problem`.

    Args:
        problem: the program on its mesh.
        program: another program with the same inputs and outputs.
        in_pins: other pins of the inputs.
        out_pins: other pins of the outputs.
        structure: the structure of the program, if it was computed before.
        moves: other changes to the dims that the pins seed.
    """
    return layout_problem(
        problem.program if program is None else program,
        problem.mesh,
        problem.in_pins if in_pins is None else in_pins,
        problem.out_pins if out_pins is None else out_pins,
        problem.out_names,
        problem.user_meshes,
        problem.shardings,
        structure,
        problem.moves if moves is None else moves,
        problem.host,
    )


def with_moves(problem: LayoutProblem, moves: AbstractSet[DimMove]) -> LayoutProblem | None:
    """Return the program with further changes to the dims that the pins seed, and with its restrictions for memory.

    None if the program would need a finer mesh.
    """
    structure = ProgramStructure(problem.unfolded, dim_groups(problem.unfolded.equations))
    moved = rebuild(problem, structure=structure, moves=problem.moves | moves)
    if moved.mesh != problem.mesh:
        return None
    restricted = reduce_in_loops(moved, problem.reduced_in_loops)
    restricted = shard_at_boundaries(restricted, problem.sharded_at_boundaries)
    return replace(restricted, requested_out_pins=problem.requested_out_pins)


@final
@dataclass(frozen=True, eq=False)
class ProgramStructure:
    """The results of analyses that depend on the program alone, not on pins.

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
        """The free values, and the free values all of whose elements are the same finite, nonzero number."""
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
    host: HostArrays = NO_HOST_ARRAYS,
) -> LayoutProblem:
    """Compute the candidates of all equations on all axes.

    Args:
        program: a program without calls.
        mesh: the mesh. If a reshape needs sub-axes, the result is on a finer mesh.
        in_pins: the pins of the inputs.
        out_pins: the pins of the outputs. Outputs with None get an inferred pin, or none.
        out_names: the names of the outputs, for messages; by default `output 0` and so on.
        user_meshes: the user's meshes. Each output layout must be expressible in the axes of one of them. If empty,
            outputs may be sharded along sub-axes.
        shardings: the shardings of values along Explicit axes; the other values are replicated along these.
        structure: the structure of the program, if it was computed before.
        moves: changes to the dims that the pins seed.
        host: the inputs and outputs that are in host memory.

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
    if not mesh.axis_names:  # a single device: nothing to plan
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
            host=host,
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
    equations = PlannedEquations.from_program(program, in_pins, unfolded, free, scales)
    axis_seeds = seed_axes(unfolded.equations, mesh, fine, pins, structure.groups, moves)
    return LayoutProblem(
        program,
        fine,
        tuple(in_pins),
        tuple(out_pins),
        unfolded,
        free,
        {
            axis: candidates_on(
                equations,
                PlannedAxis(axis, fine.shape[axis], seeds, typed.get(axis), other_shards(axis, axis_seeds, fine)),
            )
            for axis, seeds in axis_seeds.items()
        },
        requested_out_pins=requested,
        out_names=names,
        user_meshes=tuple(user_meshes),
        shardings=shardings,
        moves=moves,
        host=host,
    )


def pinned_values(
    program: Program, unfolded: Unfolded, in_pins: Sequence[Pin], out_pins: Sequence[Pin | None]
) -> list[tuple[Value, Pin]]:
    """Return the pinned inputs, outputs, constrained values and values at the boundaries of manual regions."""
    pins = [(value, pin) for value, pin in zip(program.inputs, in_pins, strict=True)]
    pins += [(value, pin) for value, pin in zip(program.outputs, out_pins, strict=True) if pin]
    for equation in unfolded.equations:
        if pin := equation.op.operand_pin:
            pins += [(value, pin) for value in equation.inputs]
        if pin := equation.op.result_pin:
            pins += [(value, pin) for value in equation.outputs]
    return pins


def free_values(unfolded: Unfolded) -> tuple[frozenset[Value], frozenset[Value]]:
    """Return the free values, and the free values all of whose elements are the same finite, nonzero number."""
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
