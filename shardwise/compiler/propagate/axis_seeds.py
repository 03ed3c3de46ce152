"""Seeds: which dims each mesh axis may cut, given what the user pinned.

A pin puts an axis on a dim; the dim's whole colour may then be cut by it. A reshape can need more than one factor of a
dim for the axes that cut it: rows of 32 over data=4, model=2, seen as 4×8, are cut by data along the 4 and by model
along the 8. An axis that alone is too much for the first factor is taken apart: over data=8 the 4 is cut by one piece
of data, of size 4, and the 8 by the other, of size 2.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.control.region_boundary import Join, Split
from shardwise.compiler.propagate.dim_groups import DimGroups
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import split_mesh, sub_axes_of

Pins = Sequence[tuple[Value, Pin]]


@final
@dataclass(frozen=True)
class Seeds:
    """Of one axis: the colours that it may cut; and for each reshape the factors that it may cut after others."""

    tied: DimGroups
    colours: set[int]
    minor: dict[Equation, frozenset[int]] = field(default_factory=dict)

    def has(self, value: Value, dim: int) -> bool:
        return self.tied.find(value, dim) in self.colours


def split_axes(equations: Sequence[Equation], mesh: AbstractMesh, pins: Pins, tied: DimGroups) -> AbstractMesh:
    """The mesh with those axes taken apart that a reshape needs in pieces; the same one where there are none."""
    lists: dict[int, set[tuple[str, ...]]] = defaultdict(set)  # of a colour: the axes that pins give its dims
    for value, pin in pins:
        for dim, axes in enumerate(pin.layout.dims):
            if axes:
                lists[tied.find(value, dim)].add(axes)
    parts: dict[str, int] = {}
    for equation, rule, values in _compound(equations):
        if isinstance(equation.op, (Split, Join)):
            continue
        for number, dims in enumerate((*rule.operands, *rule.results)):
            for dim, factors in enumerate(dims):
                if len(factors) < 2 or not rule.need_replication.isdisjoint(factors):
                    continue
                for axes in lists.get(tied.find(values[number], dim), ()):
                    _split([rule.sizes[factor] for factor in factors], axes, mesh, parts)
    return split_mesh(mesh, parts) if parts else mesh


def _split(sizes: Sequence[int], axes: Sequence[str], mesh: AbstractMesh, parts: dict[str, int]) -> None:
    """Notes where axes that cut a dim of factors of these sizes go past the end of one: an axis, and its major part."""
    left = list(sizes)
    found = {}
    for axis in axes:
        count = mesh.shape[axis]
        while left and left[0] == 1:
            left.pop(0)
        if not left:
            return
        if left[0] % count == 0:
            left[0] //= count
        elif count % left[0] == 0 and len(left) > 1 and left[1] % (count // left[0]) == 0:
            found[axis] = left[0]
            left[:2] = [left[1] // (count // left[0])]
        else:
            return  # pieces would begin in the middle of an element of the first factor
    parts.update((axis, part) for axis, part in found.items() if axis not in parts)


def seed_axes(
    equations: Sequence[Equation], coarse: AbstractMesh, mesh: AbstractMesh, pins: Pins, tied: DimGroups
) -> dict[str, Seeds]:
    """What each axis of `mesh` may cut; some may be pieces of the axes of `coarse`."""
    found = {
        axis: Seeds(
            tied, {tied.find(value, dim) for value, pin in pins if (dim := pin.layout.dim_of(axis)) is not None}
        )
        for axis in mesh.axis_names
    }
    reshapes = list(_compound(equations))
    whole = {**mesh.shape}
    for axis, pieces in sub_axes_of(coarse, mesh).items():
        whole.update(dict.fromkeys(pieces, coarse.shape[axis]))
    grown = True
    while grown:  # a dim that an axis may cut from now on can be reshaped again
        grown = False
        for equation, rule, values in reshapes:
            on = _axes_of_factors(rule, values, found)
            for axis, seeds in found.items():
                minor = frozenset([factor for factor in rule.minor if _may_follow(rule, factor, axis, on, mesh)])
                if minor:
                    seeds.minor[equation] = minor
                if whole[axis] != mesh.shape[axis]:
                    minor |= _too_small(rule, values, seeds, whole[axis])
                reached = {tied.find(values[number], dim) for factor in minor for number, dim in rule.dims_with(factor)}
                grown = grown or not reached <= seeds.colours
                seeds.colours.update(reached)
    return found


def _axes_of_factors(rule: FactorRule, values: Sequence[Value], found: dict[str, Seeds]) -> dict[int, set[str]]:
    """For each factor of a compound dim, the axes that may cut a dim which has it."""
    return {
        factor: {
            axis for axis, seeds in found.items() if any(seeds.has(values[n], dim) for n, dim in rule.dims_with(factor))
        }
        for factor in rule.compound
    }


def _may_follow(rule: FactorRule, factor: int, axis: str, on: dict[int, set[str]], mesh: AbstractMesh) -> bool:
    """Whether the axis may cut a factor that comes after others: other axes can cut those into single elements."""
    if axis not in on[factor] or mesh.shape[axis] == 1 or rule.sizes[factor] % mesh.shape[axis]:
        return False
    for factors in rule.compound_dims:
        if factor in factors:
            for before in factors[: factors.index(factor)]:
                others = mesh.extent(on[before] - {axis})
                if before in rule.need_replication or others % rule.sizes[before]:
                    return False
    return True


def _too_small(rule: FactorRule, values: Sequence[Value], seeds: Seeds, whole: int) -> frozenset[int]:
    """The factors of dims for whose first factor an axis was too large before it was taken apart. Its pieces may cut
    any dim that has them: what was batch stays batch."""
    return frozenset(
        factor
        for number, dims in enumerate((*rule.operands, *rule.results))
        for dim, factors in enumerate(dims)
        if len(factors) > 1 and rule.sizes[factors[0]] % whole and seeds.has(values[number], dim)
        for factor in factors
    )


def _compound(equations: Sequence[Equation]) -> Iterator[tuple[Equation, FactorRule, Sequence[Value]]]:
    """The equations in which a dim has several factors."""
    for equation in equations:
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        if rule.compound_dims:
            yield equation, rule, (*equation.inputs, *equation.outputs)
