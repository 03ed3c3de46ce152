"""axis_candidates: the candidates of all equations along one mesh axis.

Which candidates an equation has depends on the kind of the axis there:

    Manual      the equation is in a manual region of the axis: one candidate, which the region's specs decide
    Explicit    the types of the values decide; the planner chooses how results get to their types
    Auto        the planner may shard every factor that the user's pins lead to

They also depend on which operands may be partial sums, which follows from the candidates of other equations. A loop
connects equations in a circle, so `candidates_on` repeats until no further value can be partial.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import final

from shardwise.compiler.candidates.axis_seeds import Seeds
from shardwise.compiler.candidates.candidate import (
    PARTIAL_SUM,
    Candidate,
    candidates,
    manual_candidates,
    state_along,
)
from shardwise.compiler.candidates.explicit_axes import TypedAxis, keep_typed, typed_factors
from shardwise.compiler.candidates.unfold import Unfolded
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Pin

_NONE: frozenset[int] = frozenset()


@final
@dataclass(frozen=True, eq=False)
class PlannedEquations:
    """The equations to plan, and what is known of their values before any candidate is.

    Attributes:
        equations: the unfolded equations whose results are not free.
        manual: the mesh axes that are manual for an equation.
        has_boundaries: whether there are loops, branches or manual regions.
        pinned: the pin of each input.
        constrained: the pin of each input, and of each result of a constraint on an input: `in_shardings` are such.
        scales: the free values that hold one finite number other than zero in all elements.
    """

    equations: Sequence[Equation]
    manual: Mapping[Equation, frozenset[str]]
    has_boundaries: bool
    pinned: Mapping[Value, Pin]
    constrained: Mapping[Value, Pin]
    scales: frozenset[Value]

    @classmethod
    def from_program(
        cls,
        program: Program,
        in_pins: Iterable[Pin],
        unfolded: Unfolded,
        free: frozenset[Value],
        scales: frozenset[Value],
    ) -> "PlannedEquations":
        """Return the equations to plan of a program, which `unfolded` flattens, with pins of its inputs."""
        pinned = dict(zip(program.inputs, in_pins, strict=True))
        constraints = {
            equation.outputs[0]: pin
            for equation in program.equations
            if (pin := equation.op.constraint) and equation.inputs[0] in pinned
        }
        equations = unfolded.planned(free)
        return cls(equations, unfolded.manual, bool(unfolded.boundaries), pinned, {**pinned, **constraints}, scales)


@final
@dataclass(frozen=True, eq=False)
class PlannedAxis:
    """A mesh axis, and what it may shard.

    Attributes:
        name: the axis.
        size: its size.
        seeds: the dims that it may shard for values along which the planner decides.
        typed: the types along it, if it is Explicit for at least one value.
    """

    name: str
    size: int
    seeds: Seeds
    typed: TypedAxis | None = None


def candidates_on(program: PlannedEquations, axis: PlannedAxis) -> dict[Equation, tuple[Candidate, ...]]:
    """Return the candidates of all planned equations on one axis."""
    partial_inputs = [value for value, pin in program.pinned.items() if pin.layout.is_partial(axis.name)]

    def options(equation: Equation, partial: frozenset[int]) -> tuple[Candidate, ...]:
        if axis.name in program.manual.get(equation, ()):
            return manual_candidates(equation.op, _operand_types(equation), len(equation.outputs), axis.name)
        if axis.typed is not None:
            return _explicit_candidates(equation, partial, program, axis, axis.typed)
        return _auto_candidates(equation, partial, program, axis)

    return _close_over_partial_values(program, partial_inputs, options)


def _close_over_partial_values(
    program: PlannedEquations,
    partial_inputs: Iterable[Value],
    options: Callable[[Equation, frozenset[int]], tuple[Candidate, ...]],
) -> dict[Equation, tuple[Candidate, ...]]:
    """Return the candidates of all equations, given all values that may be partial.

    Args:
        program: the equations.
        partial_inputs: the inputs that are partial.
        options: returns the candidates of an equation, given the operands that may be partial.
    """
    candidates_of: dict[Equation, tuple[Candidate, ...]] = {}
    computed_for: dict[Equation, frozenset[int]] = {}  # the partial operands for which the candidates were computed
    partial = set(partial_inputs)
    fresh: set[Value] | None = None  # the values that became partial since the round before; None in the first round
    while True:  # a carry reads a value that is defined later, so this is repeated until no value becomes partial
        before = set(partial)
        for equation in program.equations:
            if fresh is not None and fresh.isdisjoint(equation.inputs):
                continue
            partial_operands = _indices_in(equation.inputs, partial)
            if computed_for.get(equation) == partial_operands:  # nothing else changes between rounds
                continue
            computed_for[equation] = partial_operands
            candidates_of[equation] = options(equation, partial_operands)
            if any([PARTIAL_SUM in candidate.results for candidate in candidates_of[equation]]):
                partial.update(equation.outputs)
                if fresh is not None:
                    fresh.update(equation.outputs)
        # Without loops and branches, values are defined before they are used, and the first round has seen all.
        if len(partial) == len(before) or not program.has_boundaries:
            return candidates_of
        fresh = partial - before


def _auto_candidates(
    equation: Equation, partial: frozenset[int], program: PlannedEquations, axis: PlannedAxis
) -> tuple[Candidate, ...]:
    """Return the candidates of an equation on an Auto axis. `partial`: the operands that may be partial sums."""
    types = _operand_types(equation)
    factors = _seeded_factors(equation, factor_rule(equation.op, types), axis)
    scales = _indices_in(equation.inputs, program.scales)
    reaching = _NONE if equation.op.reduces_operands_first else partial
    options = candidates(equation.op, types, len(equation.outputs), axis.name, factors, reaching, scales)
    return _keep_pinned(equation, options, program, axis)


def _explicit_candidates(
    equation: Equation, partial: frozenset[int], program: PlannedEquations, axis: PlannedAxis, typed: TypedAxis
) -> tuple[Candidate, ...]:
    """Return the candidates of an equation on an Explicit axis: those whose results match their types."""
    types = _operand_types(equation)
    rule = factor_rule(equation.op, types)
    # On a mixed axis, the planner decides for values in Auto parts of the program, and so for equations that read them.
    values = (*equation.inputs, *equation.outputs)
    is_typed = not typed.mixed or all([typed.types(value) for value in values])
    factors = typed_factors(equation, rule, typed) if is_typed else _seeded_factors(equation, rule, axis)
    if typed.has_unreduced(equation.outputs):  # the type asks for terms of a sum, whatever they are multiplied by
        scales, reaching = frozenset(range(len(types))), partial
    else:
        scales = _indices_in(equation.inputs, program.scales)
        reaching = _NONE if equation.op.reduces_operands_first else partial
    options = candidates(equation.op, types, len(equation.outputs), axis.name, factors, reaching, scales)
    return _keep_pinned(equation, keep_typed(equation, rule, options, typed), program, axis)


def _seeded_factors(equation: Equation, rule: FactorRule, axis: PlannedAxis) -> frozenset[int]:
    """Return the factors of an equation that the axis may shard, by its seeds."""
    values = (*equation.inputs, *equation.outputs)
    seeds = axis.seeds
    # Dims that begin with the same factor are in one dim group, so the first of them stands for all. Any number of
    # devices may shard a simple dim, which is padded; the first factor of a compound dim needs an element for each.
    major = frozenset(
        [
            factor
            for factor, ((index, dim), *_) in rule.dims_by_leading_factor
            if seeds.has(values[index], dim)
            and (factor not in rule.compound or rule.allows_sharding({factor: axis.size}))
        ]
    )
    factors = seeds.minor.get(equation, _NONE) | major
    if index_factors := equation.op.shard_index_factors:
        factors -= frozenset(index_factors.values())  # the axes of the region shard them down to single elements
    return factors


def _keep_pinned(
    equation: Equation, options: tuple[Candidate, ...], program: PlannedEquations, axis: PlannedAxis
) -> tuple[Candidate, ...]:
    """Return the candidates in which a pinned or constrained input enters the `unstack` of a loop in that layout.

    The loop reshards the input slice by slice. Resharding all of it before the loop would copy all layers at once. If
    the leading dim itself is sharded, the loop needs it replicated, and all candidates are returned. So are those of
    ops that do not read slices.
    """
    pin = program.constrained.get(equation.inputs[0]) if equation.op.reads_slices else None
    if pin is None:
        return options
    pinned = state_along(pin.layout, axis.name)
    kept = tuple([c for c in options if c.operands[0] == pinned])
    return kept or options


def _operand_types(equation: Equation) -> tuple[ArrayType, ...]:
    return tuple([value.type for value in equation.inputs])


def _indices_in(operands: Sequence[Value], values: AbstractSet[Value]) -> frozenset[int]:
    """Return the indices of the operands that are among `values`."""
    if values.isdisjoint(operands):
        return _NONE
    return frozenset([index for index, value in enumerate(operands) if value in values])
