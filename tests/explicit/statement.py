"""The rule of docs/explicit.md, stated a second time: the oracle for the types of results and cotangents.

It knows an op by its factor rule, which has laws of its own. Shards of compound dims are compared element by element.
Nothing of `compiler/ir/explicit_rule.py` is used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, product
from typing import final

import numpy as np

from shardwise.compiler.shardings.factors import FactorRule


@final
@dataclass(frozen=True)
class Spec:
    """The sharding of one value along Explicit axes: the axes of each dim, the unreduced and the reduced axes."""

    dims: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()

    @property
    def cotangent(self) -> "Spec":
        """The row of the table: sharded as the primal; unreduced where it is reduced, and the other way round."""
        return Spec(self.dims, self.reduced, self.unreduced)

    @property
    def problem(self) -> frozenset[str]:
        return frozenset(axis for axes in self.dims for axis in axes)


class Refused(Exception):
    """The rule asks the user to decide; the message says what."""


def result_specs(
    rule: FactorRule,
    linear_in: Sequence[Sequence[int]],
    is_contraction: bool,
    operands: Sequence[Spec],
    sizes: Mapping[str, int],
) -> list[Spec]:
    """Return the specs of an op's results.

    Args:
        rule: the factor rule of the op.
        linear_in: the sets of operands in which it is jointly linear.
        is_contraction: whether it sums products of its operands.
        operands: the specs of its operands.
        sizes: the sizes of the mesh axes.

    Raises:
        Refused: if the rule makes this application an error.
    """
    in_results = {factor for dims in rule.results for factors in dims for factor in factors}
    cannot_keep = rule.need_replication & in_results - rule.typed_as.keys()
    shardings: dict[int, list[tuple[str, ...]]] = {}
    for spec, dims in zip(operands, rule.operands, strict=True):
        for axes, factors in zip(spec.dims, dims, strict=True):
            gathered = rule.need_replication.intersection(factors)
            if axes and gathered and cannot_keep:
                raise Refused("unsharded")
            kept = () if gathered else axes
            for factor, of_factor in zip(factors, split_axes(rule, factors, kept, sizes), strict=True):
                shardings.setdefault(factor, []).append(of_factor)
    factor_axes: dict[int, tuple[str, ...]] = {}
    for factor, of_operands in shardings.items():
        named = {axes for axes in of_operands if axes}
        if len(named) > 1:
            raise Refused("conflict")
        if named and factor in rule.reduce:
            if is_contraction and len(of_operands) > 1 and all(of_operands):
                raise Refused("ambiguous")
        elif named:
            (factor_axes[factor],) = named
    for factor, source in rule.typed_as.items():  # a slice at a traced index keeps the sharding of the sliced dim
        factor_axes[factor] = next(iter({axes for axes in shardings.get(source, ()) if axes}), ())
    unreduced = unreduced_axes(linear_in, operands)
    problem = frozenset().union(*(spec.problem for spec in operands)) if operands else frozenset()
    reduced = (frozenset().union(*(spec.reduced for spec in operands)) if operands else frozenset()) - unreduced
    results = []
    for dims in rule.results:
        of_dims = tuple(join_axes(rule, factors, factor_axes, sizes) for factors in dims)
        axes = [axis for of_dim in of_dims for axis in of_dim]
        if len(set(axes)) < len(axes):
            raise Refused("twice")
        results.append(Spec(of_dims, unreduced, reduced - problem))
    return results


def split_axes(
    rule: FactorRule, factors: tuple[int, ...], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> Sequence[tuple[str, ...]]:
    """Return the axes that shard each factor of a dim that is sharded along `axes`.

    Of a compound dim: the only division of the axes among the factors in which every device keeps its elements. If the
    shards are uneven, they are shards of the first factor.
    """
    if len(factors) <= 1:
        return [axes][: len(factors)]  # a dim of size 1 may have no factor, and its axes no place in the result
    extents = [rule.sizes[factor] for factor in factors]
    whole = owners([math.prod(extents)], [axes], sizes)
    for cuts in combinations_with_replacement(range(len(axes) + 1), len(factors) - 1):
        bounds = (0, *cuts, len(axes))
        division = [axes[start:end] for start, end in pairwise(bounds)]
        if whole is not None and owners(extents, division, sizes) == whole:
            return division
    if math.prod(sizes[axis] for axis in axes) > extents[0]:
        raise Refused("contiguous")
    return [axes, *[()] * (len(factors) - 1)]


def join_axes(
    rule: FactorRule, factors: tuple[int, ...], factor_axes: Mapping[int, tuple[str, ...]], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the axes of a dim of a result: its shards must be intervals, or uneven shards of its first factor."""
    division = [factor_axes.get(factor, ()) for factor in factors]
    axes = tuple(axis for of_factor in division for axis in of_factor)
    extents = [rule.sizes[factor] for factor in factors]
    if len(factors) > 1 and math.prod(sizes[axis] for axis in division[0]) > extents[0]:
        raise Refused("contiguous")
    if len(factors) > 1 and any(division[1:]):
        of_factors = owners(extents, division, sizes)
        if of_factors is None or of_factors != owners([math.prod(extents)], [axes], sizes):
            raise Refused("contiguous")
    return axes


def owners(
    extents: Sequence[int], division: Sequence[tuple[str, ...]], sizes: Mapping[str, int]
) -> list[tuple[int, ...]] | None:
    """Return for each index of a dim the coordinates of its owner along all axes; None if shards are uneven."""
    counts = [math.prod(sizes[axis] for axis in axes) for axes in division]
    if any(extent % count for extent, count in zip(extents, counts, strict=True)):
        return None
    of_index = []
    for digits in product(*map(range, extents)):
        coordinates: list[int] = []
        for digit, extent, count, axes in zip(digits, extents, counts, division, strict=True):
            shard = digit // (extent // count)
            coordinates += np.unravel_index(shard, [sizes[axis] for axis in axes]) if axes else ()
        of_index.append(tuple(map(int, coordinates)))
    return of_index


def unreduced_axes(linear_in: Sequence[Sequence[int]], operands: Sequence[Spec]) -> frozenset[str]:
    """Return the axes over which results are unreduced: those of all operands in which the op is jointly linear.

    A scalar that pads or fills an unreduced array need not be unreduced: one device uses it, the others use zero.
    """
    terms = {number for number, spec in enumerate(operands) if spec.unreduced}
    if not terms:
        return frozenset()
    alike = len({operands[number].unreduced for number in terms}) == 1
    axes = operands[min(terms)].unreduced
    scalars = {number for number, spec in enumerate(operands) if not spec.dims and operands[min(terms)].dims}
    if not alike or not any(terms <= set(linear) <= terms | scalars for linear in linear_in):
        raise Refused("not linear")
    if any(axes & spec.problem for spec in operands):
        raise Refused("not linear")  # each device multiplies its term by another shard
    return axes
