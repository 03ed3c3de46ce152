"""axis_seeds: the dims that each mesh axis may shard, given the user's pins.

The input is a flat list of equations, the pins and the groups of connected dims. The output is, for each axis, the dim
groups that it may shard. A pin seeds the group of the pinned dim with its axes.

A reshape may need several factors of a dim for the axes that shard the dim. If 32 rows, sharded over data=4 and
model=2, are reshaped to 4×8, then data shards the 4 and model shards the 8. An axis that is larger than the first
factor is split into sub-axes: of data=8, a sub-axis of size 4 shards the 4, and a sub-axis of size 2 shards the 8.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shardwise.compiler.candidates.dim_groups import DimGroups
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import split_mesh, sub_axes_of

Pins = Sequence[tuple[Value, Pin]]
Dim = tuple[Value, int]


class DimMove(NamedTuple):
    """A change of the dims that an axis may shard.

    Attributes:
        axis: the axis.
        source: a dim that the axis may no longer shard, with all connected dims; None to remove none.
        target: a dim that the axis may shard although no pin seeds it, with all connected dims.
    """

    axis: str
    source: Dim | None
    target: Dim


@final
@dataclass(frozen=True)
class Seeds:
    """The dims that one mesh axis may shard.

    Attributes:
        dim_groups: the groups of connected dims of the program.
        groups: the groups that the axis may shard.
        minor: for each reshape, the minor factors that the axis may shard once other axes fully shard the major ones.
    """

    dim_groups: DimGroups
    groups: set[int]
    minor: dict[Equation, frozenset[int]] = field(default_factory=dict)

    def has(self, value: Value, dim: int) -> bool:
        """Return whether the axis may shard this dim."""
        return self.dim_groups.find(value, dim) in self.groups


def split_axes(
    equations: Sequence[Equation], mesh: AbstractMesh, pins: Pins, dim_groups: DimGroups, typed: Collection[str] = ()
) -> AbstractMesh:
    """Split the mesh axes that are larger than the first factor of a pinned compound dim.

    Axes that are Explicit for a value (`typed`) are not split, because types refer to the user's axes.

    Returns:
        The finer mesh; `mesh` itself if no axis is split.
    """
    pinned_axes: dict[int, set[tuple[str, ...]]] = defaultdict(set)  # dim group → the axes of pinned dims in it
    for value, pin in pins:
        for dim, axes in enumerate(pin.layout.dims):
            if axes:
                pinned_axes[dim_groups.find(value, dim)].add(axes)
    major_sizes: dict[str, int] = {}
    for equation, rule, values in _compound_equations(equations):
        if equation.op.shard_index_factors:  # the axes of a manual region shard its compound dims
            continue
        for index, dims in enumerate((*rule.operands, *rule.results)):
            for dim, factors in enumerate(dims):
                if len(factors) < 2 or not rule.need_replication.isdisjoint(factors):
                    continue
                for axes in pinned_axes.get(dim_groups.find(values[index], dim), ()):
                    sizes = [rule.sizes[factor] for factor in factors]
                    for axis, size in _axes_across_factors(sizes, axes, mesh).items():
                        if axis not in typed:
                            major_sizes.setdefault(axis, size)
    return split_mesh(mesh, major_sizes) if major_sizes else mesh


def _axes_across_factors(sizes: Sequence[int], axes: Sequence[str], mesh: AbstractMesh) -> dict[str, int]:
    """Return the axes that straddle two factors of a dim, with the size of their major sub-axis.

    Args:
        sizes: the sizes of the factors of the dim.
        axes: the axes that shard the dim, major first.
        mesh: the mesh.

    Returns:
        The axes to split; empty if no split works because a shard would begin inside an element of a factor.
    """
    rest = list(sizes)  # the part of each factor that is not sharded yet
    major_sizes = {}
    for axis in axes:
        count = mesh.shape[axis]
        while rest and rest[0] == 1:
            rest.pop(0)
        if not rest:
            return {}
        if rest[0] % count == 0:
            rest[0] //= count
        elif count % rest[0] == 0 and len(rest) > 1 and rest[1] % (count // rest[0]) == 0:
            major_sizes[axis] = rest[0]
            rest[:2] = [rest[1] // (count // rest[0])]
        else:
            return {}
    return major_sizes


def seed_axes(
    equations: Sequence[Equation],
    coarse: AbstractMesh,
    mesh: AbstractMesh,
    pins: Pins,
    dim_groups: DimGroups,
    moves: Collection[DimMove] = (),
) -> dict[str, Seeds]:
    """Return the dims that each axis of a mesh may shard.

    Args:
        equations: the equations.
        coarse: the user's mesh.
        mesh: the mesh, whose axes may be sub-axes of `coarse`.
        pins: the pinned values.
        dim_groups: the groups of connected dims.
        moves: changes to the dims that the pins seed.
    """
    seeds_of = {
        axis: Seeds(
            dim_groups,
            {dim_groups.find(value, dim) for value, pin in pins if (dim := pin.layout.dim_of(axis)) is not None},
        )
        for axis in mesh.axis_names
    }
    for move in moves:
        seeds_of[move.axis].groups.add(dim_groups.find(*move.target))
    reshapes = list(_compound_equations(equations))
    unsplit_sizes = {**mesh.shape}  # for each axis, the size of the axis of `coarse` that it is part of
    for axis, sub_axes in sub_axes_of(coarse, mesh).items():
        unsplit_sizes.update(dict.fromkeys(sub_axes, coarse.shape[axis]))
    changed = True
    while changed:  # a newly seeded dim may be reshaped again
        changed = False
        for equation, rule, values in reshapes:
            factor_axes = _axes_of_factors(rule, values, seeds_of)
            for axis, seeds in seeds_of.items():
                minor = frozenset(
                    [factor for factor in rule.minor if _may_shard_minor(rule, factor, axis, factor_axes, mesh)]
                )
                if minor:
                    seeds.minor[equation] = minor
                if unsplit_sizes[axis] != mesh.shape[axis]:
                    minor |= _factors_of_split_dims(rule, values, seeds, unsplit_sizes[axis])
                reached = {
                    dim_groups.find(values[number], dim)
                    for factor in minor | _factors_before(rule, values, seeds, mesh.shape[axis])
                    for number, dim in rule.dims_with(factor)
                }
                changed = changed or not reached <= seeds.groups
                seeds.groups.update(reached)
    # Sources are removed last, because the fixed point above could seed their groups again.
    for move in moves:
        if move.source is not None:
            seeds_of[move.axis].groups.discard(dim_groups.find(*move.source))
    return seeds_of


def other_shards(axis: str, seeds_of: Mapping[str, Seeds], mesh: AbstractMesh) -> dict[int, int]:
    """Return, for each dim group that an axis may shard, the number of its shards if all other axes that may do so."""
    others = [(mesh.shape[name], seeds.groups) for name, seeds in seeds_of.items() if name != axis]
    return {group: math.prod(size for size, groups in others if group in groups) for group in seeds_of[axis].groups}


def _axes_of_factors(rule: FactorRule, values: Sequence[Value], seeds_of: dict[str, Seeds]) -> dict[int, set[str]]:
    """Return, for each factor of a compound dim, the axes that may shard a dim that has this factor."""
    return {
        factor: {
            axis
            for axis, seeds in seeds_of.items()
            if any(seeds.has(values[number], dim) for number, dim in rule.dims_with(factor))
        }
        for factor in rule.compound
    }


def _may_shard_minor(
    rule: FactorRule, factor: int, axis: str, factor_axes: dict[int, set[str]], mesh: AbstractMesh
) -> bool:
    """Return whether an axis may shard a minor factor, because other axes can fully shard the factors before it."""
    if axis not in factor_axes[factor] or mesh.shape[axis] == 1 or rule.sizes[factor] % mesh.shape[axis]:
        return False
    for factors in rule.compound_dims:
        if factor in factors:
            for before in factors[: factors.index(factor)]:
                others = mesh.extent(factor_axes[before] - {axis})
                if before in rule.need_replication or others % rule.sizes[before]:
                    return False
    return True


def _factors_before(rule: FactorRule, values: Sequence[Value], seeds: Seeds, size: int) -> frozenset[int]:
    """Return the major factors of compound dims in which the axis, of this size, may shard a minor factor.

    If the axis shards the major factor instead, the reshape needs an all-to-all; if replicated, an all-gather.
    """
    tables = (*rule.operands, *rule.results)
    return frozenset(
        factors[0]
        for factors in rule.compound_dims
        if factors[0] in rule.leading and rule.allows_sharding({factors[0]: size})
        for factor in factors[1:]
        for number, dim in rule.dims_with(factor)
        if tables[number][dim][0] == factor and seeds.has(values[number], dim)
    )


def _factors_of_split_dims(
    rule: FactorRule, values: Sequence[Value], seeds: Seeds, unsplit_size: int
) -> frozenset[int]:
    """Return the factors of compound dims whose first factor is not divisible by the size of the unsplit axis.

    The sub-axes may shard any dim that has one of these factors, so that batch dims stay sharded.
    """
    return frozenset(
        factor
        for index, dims in enumerate((*rule.operands, *rule.results))
        for dim, factors in enumerate(dims)
        if len(factors) > 1 and rule.sizes[factors[0]] % unsplit_size and seeds.has(values[index], dim)
        for factor in factors
    )


def _compound_equations(equations: Sequence[Equation]) -> Iterator[tuple[Equation, FactorRule, Sequence[Value]]]:
    """Yield the equations with a compound dim, with their factor rules and values."""
    for equation in equations:
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        if rule.compound_dims:
            yield equation, rule, (*equation.inputs, *equation.outputs)
