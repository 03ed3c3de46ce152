"""Candidates along Explicit mesh axes: the types of values decide.

The input is the shardings that types had before they were erased. A value without one is replicated along the Explicit
axes. The planner still chooses how an equation gets to the sharding of its type: it may compute partial sums, and
reduce them where they are used.

`auto_axes`, `explicit_axes` and `use_abstract_mesh` change the types of axes in parts of a program. So an axis may be
Explicit for some values, which are typed along it, and Auto for others, for which the planner decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from shardwise.compiler.candidates.candidate import PARTIAL_SUM, REPLICATED, Candidate, State, replicated_candidate
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin, partial_sums
from shardwise.compiler.shardings.mesh import AbstractMesh

TYPED_RESULT = "the type of the result"  # the reason of the pin of an output, for messages


@final
@record
class TypedAxis:
    """A mesh axis along which the types of values decide.

    Attributes:
        axis: the axis.
        shardings: the shardings of values along Explicit axes.
        by_default: whether values without a sharding are typed along it, as replicated.
        mixed: whether it is Auto for some values.
    """

    axis: str
    shardings: Mapping[Value, ExplicitSharding]
    by_default: bool
    mixed: bool

    def has_unreduced(self, values: Sequence[Value]) -> bool:
        """Return whether a value is unreduced over this axis by its type."""
        shardings = [self.shardings[value] for value in values if value in self.shardings]
        return any(self.axis in sharding.unreduced for sharding in shardings)

    def types(self, value: Value) -> bool:
        """Return whether the type of a value decides its sharding along this axis; if not, the planner does."""
        sharding = self.shardings.get(value)
        return self.by_default if sharding is None else self.axis not in sharding.mesh.auto_axes


def typed_axes(mesh: AbstractMesh, shardings: Mapping[Value, ExplicitSharding]) -> dict[str, TypedAxis]:
    """Return the axes that are Explicit for at least one value."""
    meshes = {mesh, *(sharding.mesh.abstract for sharding in shardings.values())}
    typed = {}
    for axis in mesh.axis_names:
        if any(axis in part.explicit_axes for part in meshes):
            by_default = axis in mesh.explicit_axes
            mixed = not by_default or any(axis in part.auto_axes for part in meshes)
            typed[axis] = TypedAxis(axis, shardings, by_default, mixed)
    return typed


def decided_by_type(value: Value, axes: Iterable[str], typed: Mapping[str, TypedAxis]) -> bool:
    """Return whether the type of a value decides its sharding along all of these axes."""
    return all(axis in typed and typed[axis].types(value) for axis in axes)


def typed_output_pins(
    program: Program, mesh: AbstractMesh, out_pins: Sequence[Pin | None], shardings: Mapping[Value, ExplicitSharding]
) -> list[Pin | None]:
    """Return the pins of the outputs: the user's pins, with the shardings of types in place of None.

    An output that has only Auto axes keeps None.
    """
    pins: list[Pin | None] = []
    for value, pin in zip(program.outputs, out_pins, strict=True):
        sharding = shardings.get(value)
        explicit = sharding.mesh.explicit_axes if sharding else mesh.explicit_axes
        if pin is not None or not explicit:
            pins.append(pin)
            continue
        layout = Layout.replicated(value.type.ndim)
        if sharding is not None:
            layout = Layout(sharding.dims, partial_sums(sharding.unreduced))
        has_auto = len(explicit) < len(mesh.axis_names)
        open_dims = frozenset(range(value.type.ndim)) if has_auto else frozenset()
        pins.append(Pin(layout, open_dims, TYPED_RESULT))
    return pins


def typed_factors(equation: Equation, rule: FactorRule, axis: TypedAxis) -> frozenset[int]:
    """Return the factors of the dims that types shard along an axis.

    In a compound dim, this is a minor factor if other axes fully shard the factors before it.
    """
    factors = set()
    for value, dims in zip((*equation.inputs, *equation.outputs), (*rule.operands, *rule.results), strict=True):
        sharding = axis.shardings.get(value)
        if sharding is None:
            continue
        for of_dim, axes in zip(dims, sharding.dims, strict=True):
            if axis.axis in axes and of_dim:
                assigned = rule.assign_axes(of_dim, axes, sharding.mesh.shape)
                pairs = zip(of_dim, assigned, strict=True)
                factors |= {factor for factor, of_factor in pairs if axis.axis in of_factor}
    return frozenset(factors) - rule.need_replication


def keep_typed(
    equation: Equation, rule: FactorRule, options: tuple[Candidate, ...], axis: TypedAxis
) -> tuple[Candidate, ...]:
    """Return the candidates whose results have the shardings of their types along an axis.

    A result may also be partial: it is reduced where it is used. An unreduced result stays partial. An op that would
    communicate across the shards of a result may compute it replicated instead; every device then slices its shard.
    """

    def matches(value: Value, dims: Dims, state: State) -> bool:
        if axis.mixed and not axis.types(value):
            return True
        sharding = axis.shardings.get(value)
        if sharding is None:
            return state == REPLICATED or isinstance(state, Reduction)
        if axis.axis in sharding.unreduced:
            return state is PARTIAL_SUM
        dim = next((dim for dim, axes in enumerate(sharding.dims) if axis.axis in axes), None)
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
