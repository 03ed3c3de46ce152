"""axis_candidates: the candidates of all equations along one mesh axis.

Which candidates an equation has depends on the type of the axis at that equation:

    Manual      one candidate, given by the specs of the manual region that contains the equation
    Explicit    the types of the values decide; the planner chooses how results get to their types
    Auto        the planner may shard every factor that the user's pins reach

Candidates also depend on which operands may be partial sums or maxima, and that depends on the candidates of other
equations. Loops make this dependency cyclic, so `candidates_on` iterates to a fixed point: until no further value can
be partial.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.candidates.axis_seeds import Seeds
from shardwise.compiler.candidates.candidate import (
    PARTIAL_MAX,
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
    """The equations to plan, with the facts about their values that do not depend on candidates.

    Attributes:
        equations: the unfolded equations whose results are not free.
        manual: the mesh axes that are manual for an equation.
        has_boundaries: whether there are loops, branches or manual regions.
        pinned: the pin of each input.
        constrained: the pin of each input, and of each constraint result whose operand is an input, as for
            `in_shardings`.
        scales: the free values all of whose elements are the same finite, nonzero number.
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
        """Return the equations to plan of a program, given its `unfolded` form and the pins of its inputs."""
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
    """A mesh axis, with the dims that it may shard.

    Attributes:
        name: the axis.
        size: its size.
        seeds: the dims that it may shard where the planner decides.
        typed: the shardings of types along it, if it is Explicit for at least one value.
        other_shards: for each dim group, the number of shards if all other axes that may shard it do so.
    """

    name: str
    size: int
    seeds: Seeds
    typed: TypedAxis | None = None
    other_shards: Mapping[int, int] = field(default_factory=dict)


def candidates_on(program: PlannedEquations, axis: PlannedAxis) -> dict[Equation, tuple[Candidate, ...]]:
    """Return the candidates of all planned equations on one axis."""
    partial_inputs = [value for value, pin in program.pinned.items() if pin.layout.is_partial(axis.name)]

    def options(equation: Equation, partial: frozenset[int], maxima: frozenset[int]) -> tuple[Candidate, ...]:
        if axis.name in program.manual.get(equation, ()):
            return manual_candidates(equation.op, _operand_types(equation), len(equation.outputs), axis.name)
        if axis.typed is not None:
            return _explicit_candidates(equation, partial, program, axis, axis.typed)
        return _auto_candidates(equation, partial, maxima, program, axis)

    return _close_over_partial_values(program, partial_inputs, options)


def _close_over_partial_values(
    program: PlannedEquations,
    partial_inputs: Iterable[Value],
    options: Callable[[Equation, frozenset[int], frozenset[int]], tuple[Candidate, ...]],
) -> dict[Equation, tuple[Candidate, ...]]:
    """Compute the candidates and the values that may be partial, to a fixed point; return the candidates.

    Args:
        program: the equations.
        partial_inputs: the inputs that are partial.
        options: returns the candidates of an equation, given the indices of its operands that may be partial sums, and
            of those that may be partial maxima.
    """
    candidates_of: dict[Equation, tuple[Candidate, ...]] = {}
    # The partial operands for which the candidates were computed.
    computed_for: dict[Equation, tuple[frozenset[int], frozenset[int]]] = {}
    partial = set(partial_inputs)
    maxima: set[Value] = set()
    fresh: set[Value] | None = None  # the values that became partial since the round before; None in the first round
    while True:  # to a fixed point: a carry reads a value that a later equation defines
        before = len(partial) + len(maxima)
        known = partial | maxima
        for equation in program.equations:
            if fresh is not None and fresh.isdisjoint(equation.inputs):
                continue
            partial_operands = _indices_in(equation.inputs, partial), _indices_in(equation.inputs, maxima)
            if computed_for.get(equation) == partial_operands:  # candidates depend on nothing else that changes
                continue
            computed_for[equation] = partial_operands
            candidates_of[equation] = options(equation, *partial_operands)
            for term, values in ((PARTIAL_SUM, partial), (PARTIAL_MAX, maxima)):
                if any([term in candidate.results for candidate in candidates_of[equation]]):
                    values.update(equation.outputs)
                    if fresh is not None:
                        fresh.update(equation.outputs)
        # Without loops and branches, values are defined before they are used, so the first round is the fixed point.
        if len(partial) + len(maxima) == before or not program.has_boundaries:
            return candidates_of
        fresh = (partial | maxima) - known


def _auto_candidates(
    equation: Equation,
    partial: frozenset[int],
    maxima: frozenset[int],
    program: PlannedEquations,
    axis: PlannedAxis,
) -> tuple[Candidate, ...]:
    """Return the candidates of an equation on an Auto axis.

    `partial` are the operands that may be partial sums, and `maxima` those that may be partial maxima.
    """
    types = _operand_types(equation)
    factors = _seeded_factors(equation, factor_rule(equation.op, types), axis)
    scales = _indices_in(equation.inputs, program.scales)
    reaching = _NONE if equation.op.reduces_operands_first else partial
    needed = _needs_sharding(equation, axis, factors)
    options = candidates(
        equation.op, types, len(equation.outputs), axis.name, factors, reaching, scales, maxima, needed
    )
    return _keep_pinned(equation, options, program, axis)


def _needs_sharding(equation: Equation, axis: PlannedAxis, factors: frozenset[int]) -> bool:
    """Return whether a contraction must be sharded along this axis if it can be; for other ops, this is not used.

    It need not be if the other axes may shard each of `factors` that is a dim of the result completely: this axis would
    only pad these dims. While it can shard another dim, such as the sequence, replication would only enlarge the
    planner's tables.

    Args:
        equation: the equation.
        axis: the axis.
        factors: the factors that the axis may shard.
    """
    if not equation.op.is_contraction or axis.size == 1:
        return True
    values = (*equation.inputs, *equation.outputs)
    rule = factor_rule(equation.op, _operand_types(equation))
    only_padded = [
        1 < rule.sizes[factor] <= axis.other_shards.get(axis.seeds.dim_groups.find(values[index], dim), 1)
        for factor, ((index, dim), *_) in rule.dims_by_leading_factor
        if factor in factors and factor not in rule.reduce
    ]
    return not only_padded or not all(only_padded)


def _explicit_candidates(
    equation: Equation, partial: frozenset[int], program: PlannedEquations, axis: PlannedAxis, typed: TypedAxis
) -> tuple[Candidate, ...]:
    """Return the candidates of an equation on an Explicit axis that match the types of its results."""
    types = _operand_types(equation)
    rule = factor_rule(equation.op, types)
    # A mixed axis is Auto for some values. The planner decides for equations that read or compute such values.
    values = (*equation.inputs, *equation.outputs)
    is_typed = not typed.mixed or all([typed.types(value) for value in values])
    factors = typed_factors(equation, rule, typed) if is_typed else _seeded_factors(equation, rule, axis)
    if typed.has_unreduced(equation.outputs):  # the type requires partial sums, whatever they are multiplied by
        scales, reaching = frozenset(range(len(types))), partial
    else:
        scales = _indices_in(equation.inputs, program.scales)
        reaching = _NONE if equation.op.reduces_operands_first else partial
    needed = is_typed or _needs_sharding(equation, axis, factors)
    options = candidates(
        equation.op, types, len(equation.outputs), axis.name, factors, reaching, scales, needs_sharding=needed
    )
    return _keep_pinned(equation, keep_typed(equation, rule, options, typed), program, axis)


def _seeded_factors(equation: Equation, rule: FactorRule, axis: PlannedAxis) -> frozenset[int]:
    """Return the factors of an equation that the axis may shard, by its seeds."""
    values = (*equation.inputs, *equation.outputs)
    seeds = axis.seeds
    # Dims with the same leading factor are in one dim group, so the first of them represents all. A simple dim is
    # padded, so any number of devices may shard it. The leading factor of a compound dim needs at least one element per
    # device.
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
        factors -= frozenset(index_factors.values())  # the axes of the manual region shard them already, to size 1
    return factors


def _keep_pinned(
    equation: Equation, options: tuple[Candidate, ...], program: PlannedEquations, axis: PlannedAxis
) -> tuple[Candidate, ...]:
    """Return the candidates in which a pinned or constrained input enters the `unstack` of a loop in its pinned layout.

    The loop then reshards the input slice by slice. Resharding the input before the loop would copy all layers at once.
    If the leading dim itself is sharded, the loop needs it replicated, and all candidates are returned. All candidates
    of ops that do not read slices are returned too.
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
