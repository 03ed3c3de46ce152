"""Candidates along Explicit mesh axes: the types of values decide.

The input are the shardings that types had before they were erased. A value without one is replicated along the Explicit
axes. The planner still chooses how an equation gets to the sharding of its type: it may compute partial sums, and
reduce them where they are used.
"""

from collections.abc import Mapping, Sequence

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED, Candidate, State, replicated_candidate
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin, partial_sums
from shardwise.compiler.shardings.mesh import AbstractMesh


def typed_output_pins(
    program: Program, mesh: AbstractMesh, out_pins: Sequence[Pin | None], shardings: Mapping[Value, ExplicitSharding]
) -> list[Pin]:
    """Return the pins of the outputs: those that the user gave, and the shardings of types in place of None."""
    has_auto = len(mesh.explicit_axes) < len(mesh.axis_names)
    pins = []
    for value, pin in zip(program.outputs, out_pins, strict=True):
        sharding = shardings.get(value)
        layout = Layout.replicated(value.type.ndim)
        if sharding is not None:
            layout = Layout(sharding.dims, partial_sums(sharding.unreduced))
        open_dims = frozenset(range(value.type.ndim)) if has_auto else frozenset()
        pins.append(pin if pin is not None else Pin(layout, open_dims, "the type of the result"))
    return pins


def typed_factors(
    equation: Equation, rule: FactorRule, axis: str, shardings: Mapping[Value, ExplicitSharding]
) -> frozenset[int]:
    """Return the factors of the dims that types shard along an Explicit axis.

    Of a compound dim, it is a minor factor if other axes fully shard the factors before it.
    """
    factors = set()
    for value, dims in zip((*equation.inputs, *equation.outputs), (*rule.operands, *rule.results), strict=True):
        sharding = shardings.get(value)
        if sharding is None:
            continue
        for of_dim, axes in zip(dims, sharding.dims, strict=True):
            if axis in axes and of_dim:
                assigned = rule.assign_axes(of_dim, axes, sharding.mesh.shape)
                factors |= {factor for factor, of_factor in zip(of_dim, assigned, strict=True) if axis in of_factor}
    return frozenset(factors) - rule.need_replication


def has_unreduced_type(values: Sequence[Value], axis: str, shardings: Mapping[Value, ExplicitSharding] | None) -> bool:
    """Return whether a value is unreduced over an Explicit axis by its type; without shardings of types, False."""
    typed = [shardings[value] for value in values if value in shardings] if shardings else []
    return any(axis in sharding.unreduced for sharding in typed)


def keep_typed(
    equation: Equation,
    rule: FactorRule,
    options: tuple[Candidate, ...],
    axis: str,
    shardings: Mapping[Value, ExplicitSharding],
) -> tuple[Candidate, ...]:
    """Return the candidates whose results are sharded along an Explicit axis as their types say.

    A result may also be partial: it is reduced where it is used. An unreduced one stays partial. An op that would
    communicate across the shards of a result may compute it on all devices instead: every device then slices it.
    """

    def matches(value: Value, dims: Dims, state: State) -> bool:
        sharding = shardings.get(value)
        if sharding is None:
            return state == REPLICATED or isinstance(state, Reduction)
        if axis in sharding.unreduced:
            return state is PARTIAL_SUM
        dim = next((dim for dim, axes in enumerate(sharding.dims) if axis in axes), None)
        if dim is None:
            return state == REPLICATED or isinstance(state, Reduction)
        can_slice = state == REPLICATED and not rule.exchange.isdisjoint(dims[dim])
        return state == dim or isinstance(state, Reduction) or can_slice

    kept = tuple(
        [candidate for candidate in options if all(map(matches, equation.outputs, rule.results, candidate.results))]
    )
    if kept:
        return kept
    return (replicated_candidate(len(equation.inputs), len(equation.outputs)),)
