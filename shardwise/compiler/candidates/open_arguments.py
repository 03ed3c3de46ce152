"""open_arguments: let the planner choose the layouts of arguments, instead of keeping pinned ones.

An argument with an open layout becomes the result of an `argument` equation, whose candidates are all layouts with even
shards. If an output is passed as this argument to the next call, the equation reads that output: both then have one
layout, or the plan pays for the reshard. Every axis may shard every dim group of an open argument.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from shardwise.compiler.candidates.axis_candidates import PlannedAxis, PlannedEquations, candidates_on
from shardwise.compiler.candidates.axis_seeds import seed_axes
from shardwise.compiler.candidates.candidate import Candidate, state_along
from shardwise.compiler.candidates.dim_groups import DimGroups, dim_groups
from shardwise.compiler.candidates.layout_problem import LayoutProblem, free_values, pinned_values
from shardwise.compiler.candidates.unfold import Unfolded
from shardwise.compiler.control.region_boundary import Argument
from shardwise.compiler.ir.program import Equation, Value


def open_arguments(
    problem: LayoutProblem, outputs: Mapping[int, int | None], axes: Collection[str]
) -> tuple[LayoutProblem, dict[int, Equation]]:
    """Return the program with the layouts of some arguments left to the planner.

    Args:
        problem: the program, with pins of all inputs.
        outputs: for each open input, the output that is passed as this input to the next call, or None.
        axes: the axes along which the layouts of open inputs are chosen. Along other axes, the pins hold.

    Returns:
        The program with the candidates of all equations, and the `argument` equation of each open input.
    """
    program = problem.program
    equations = {
        number: Equation(
            Argument(program.inputs[number].type),
            [] if output is None else [program.outputs[output]],
            [program.inputs[number]],
        )
        for number, output in outputs.items()
    }
    carried = set(outputs.values())
    flat = problem.unfolded
    unfolded = Unfolded(
        [*equations.values(), *flat.equations],
        flat.boundaries,
        {**flat.run_counts, **dict.fromkeys(equations.values(), 1)},
        flat.manual,
    )
    opened = replace(
        problem,
        program=replace(
            program,
            inputs=tuple(value for number, value in enumerate(program.inputs) if number not in outputs),
            outputs=tuple(value for number, value in enumerate(program.outputs) if number not in carried),
        ),
        in_pins=tuple(pin for number, pin in enumerate(problem.in_pins) if number not in outputs),
        out_pins=tuple(pin for number, pin in enumerate(problem.out_pins) if number not in carried),
        unfolded=unfolded,
    )
    groups = dim_groups(unfolded.equations)
    pins = pinned_values(program, unfolded, problem.in_pins, problem.out_pins)
    free, scales = free_values(unfolded)
    planned = PlannedEquations.from_program(opened.program, opened.in_pins, unfolded, free, scales)
    values = [equation.outputs[0] for equation in equations.values()]
    loops = loop_groups(unfolded.equations, groups)
    candidates: dict[str, dict[Equation, tuple[Candidate, ...]]] = {}
    for axis, seeds in seed_axes(unfolded.equations, problem.mesh, problem.mesh, pins, groups).items():
        size = problem.mesh.shape[axis]
        if axis in axes:
            seeds.groups.update(_divisible_groups(values, size, groups) - loops)
        rows = candidates_on(planned, PlannedAxis(axis, size, seeds))
        for number, equation in equations.items():
            if axis in axes:
                rows[equation] = _with_even_shards(rows[equation], equation, size)
            else:
                pinned = state_along(problem.in_pins[number].layout, axis)
                rows[equation] = tuple([c for c in rows[equation] if c.results[0] == pinned])
        candidates[axis] = rows
    return replace(opened, free=free, candidates=candidates), equations


def loop_groups(equations: Iterable[Equation], groups: DimGroups) -> set[int]:
    """Return the groups of the dims along which loops slice and stack. Sharding these dims does not shard any work."""
    stacked = [e.inputs[0] for e in equations if e.op.reads_slices]
    stacked += [e.outputs[0] for e in equations if e.op.writes_slices]
    return {groups.find(value, 0) for value in stacked}


def _divisible_groups(values: Iterable[Value], size: int, groups: DimGroups) -> set[int]:
    """Return the groups of the dims of these values that have even shards along an axis of this size."""
    return {
        groups.find(value, dim)
        for value in values
        for dim, length in enumerate(value.type.shape)
        if length and length % size == 0
    }


def _with_even_shards(options: tuple[Candidate, ...], equation: Equation, size: int) -> tuple[Candidate, ...]:
    """Return the candidates of an `argument` equation whose shards have equal sizes."""
    shape = equation.outputs[0].type.shape
    return tuple([c for c in options if c.factor is None or (shape[c.factor] and shape[c.factor] % size == 0)])
