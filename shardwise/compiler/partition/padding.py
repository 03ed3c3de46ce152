"""Padding of unevenly sharded dims: the padded size of every dim, and the contents of the padding.

Inside the local program all dims of one padding class have the same padded size (30 rows on 4 devices: 32), so that
shards line up in every layout. Inputs and outputs have the padded size of their own layout, and some ops next to them
keep unsharded dims unpadded (`unpadded_dims.py`). Padding is at the end of a dim.

The *fill* of a dim is the scalar in its padding, the same at all indices of the other dims, or None if unknown. An op
that reduces along a padded dim needs the neutral element of its reduction as the fill; otherwise the padding is masked.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.base.lazy import lazy_module
from shardwise.compiler.candidates.dim_groups import DimGroups, padding_classes
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ScalarLike
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.partition.local_context import Shape, ShardView
from shardwise.compiler.partition.unpadded_dims import unpadded_factors
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh

fractions = lazy_module("fractions")  # its import takes 2.9 ms, and few programs need it

Fills = tuple[Any, ...]  # the fill of each dim
ClassGroup = dict[int, int]  # padding class → its number of elements per unit of the group
_NO_SIZES: Mapping[int, int] = MappingProxyType({})


@final
class Padding:
    """The padded sizes of a planned program."""

    def __init__(self, problem: LayoutProblem, plan: LayoutPlan):
        self.mesh = problem.mesh
        self.classes = DimGroups()
        self.sizes: dict[int, int] = {}
        if _has_uneven_dims(problem.program, plan, self.mesh):
            self.classes = padding_classes(problem.unfolded.equations)
            self.sizes = padded_class_sizes(problem.program, plan, self.mesh, self.classes)
        self._unpadded = unpadded_factors(problem, plan, self._is_padded) if self.sizes else {}

    def padded_shape(
        self,
        value: Value,
        rule: FactorRule,
        dims: tuple[tuple[int, ...], ...],
        layout: Layout,
        factor_sizes: Mapping[int, int] = _NO_SIZES,
    ) -> Shape:
        """Return the padded shape of an operand or result inside an op.

        Args:
            value: the operand or result.
            rule: the factor rule of the op.
            dims: the factors of each dim of the value.
            layout: the layout of the value in the op.
            factor_sizes: the sizes of factors that differ from the sizes of padding classes; see `factor_sizes`.
        """
        if not self.sizes:
            return value.type.shape
        return tuple(
            self._padded_dim(value, dim, rule, factors, bool(layout.dims[dim]), factor_sizes)
            for dim, factors in enumerate(dims)
        )

    def factor_sizes(self, equation: Equation, rule: FactorRule, choice: Choice) -> dict[int, int]:
        """Return the sizes of the factors of an equation to which the padded sizes of classes do not apply.

        These are the factors that are not padded (`unpadded_dims.py`), and the unevenly sharded leading factors of
        compound dims. If the padding classes of the dims that such a factor leads agree on a size, it has that size.
        """
        if not rule.compound_dims:
            return {factor: rule.sizes[factor] for factor in self._unpadded.get(equation, ())}
        values = (*equation.inputs, *equation.outputs)
        sizes = {}
        for factor, led_dims in uneven_leading_factors(rule, choice, self.mesh).items():
            size, shards = rule.sizes[factor], led_dims[0].shards
            # Fractions, because a padded class size need not be a multiple of the elements per unit of the factor.
            class_sizes = {
                fractions.Fraction(
                    self._class_size(values[led.number], led.dim) * size, values[led.number].type.shape[led.dim]
                )
                for led in led_dims
            }
            class_size = class_sizes.pop()
            agreed = not class_sizes and class_size.denominator == 1 and class_size % shards == 0
            sizes[factor] = int(class_size) if agreed else _round_up(size, shards)
        return sizes

    def _padded_dim(
        self,
        value: Value,
        dim: int,
        rule: FactorRule,
        factors: tuple[int, ...],
        is_sharded: bool,
        factor_sizes: Mapping[int, int],
    ) -> int:
        size = value.type.shape[dim]
        if factors and not rule.compound_dims and factors[0] in factor_sizes:
            return factor_sizes[factors[0]]
        # An op that exchanges data between shards handles padding only along dims that are sharded.
        if rule.is_paddable(factors) and (is_sharded or factors[0] not in rule.exchange):
            return self._class_size(value, dim)
        if factors and factors[0] in factor_sizes:
            return size * factor_sizes[factors[0]] // rule.sizes[factors[0]]
        return size

    def _is_padded(self, value: Value, dim: int) -> bool:
        return self.classes.find(value, dim) in self.sizes

    def _class_size(self, value: Value, dim: int) -> int:
        return self.sizes.get(self.classes.find(value, dim), value.type.shape[dim])


def _has_uneven_dims(program: Program, plan: LayoutPlan, mesh: AbstractMesh) -> bool:
    """Return whether some layout shards a dim, or the leading factor of a compound dim, unevenly."""
    extents: dict[tuple[str, ...], int] = {}

    def is_uneven(values: Sequence[Value], layouts: Sequence[Layout]) -> bool:
        for value, layout in zip(values, layouts, strict=True):
            for size, axes in zip(value.type.shape, layout.dims, strict=True):
                if axes:
                    if axes not in extents:
                        extents[axes] = mesh.extent(axes)
                    if size % extents[axes]:
                        return True
        return False

    return is_uneven(program.outputs, plan.outputs) or any(
        is_uneven(equation.inputs, choice.operands)
        or is_uneven(equation.outputs, choice.results)
        or ((rule := rule_of(equation)).compound_dims and uneven_leading_factors(rule, choice, mesh))
        for equation, choice in plan.choices.items()
    )


def padded_class_sizes(program: Program, plan: LayoutPlan, mesh: AbstractMesh, classes: DimGroups) -> dict[int, int]:
    """Return the padded size of each padding class that some layout shards unevenly.

    It is the smallest multiple of the shard counts of all layouts of the class. Classes that an unevenly sharded
    reshape links are padded by the same number of units.
    """
    sizes, shard_counts = _class_shard_counts(program, plan, mesh, classes)
    groups = _linked_classes(plan, mesh, classes, sizes)
    padded = {}
    for number in shard_counts:
        group = groups.get(number, {number: 1})
        count = math.lcm(*(shard_counts.get(other, 1) for other in group))
        padded[number] = _round_up(sizes[number], group[number] * count)
    return {number: size for number, size in padded.items() if size != sizes[number]}


def _class_shard_counts(
    program: Program, plan: LayoutPlan, mesh: AbstractMesh, classes: DimGroups
) -> tuple[dict[int, int], dict[int, int]]:
    """Return, for each padding class that is sharded anywhere, its size and the lcm of its shard counts."""
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}

    def record(values: Sequence[Value], layouts: Sequence[Layout]) -> None:
        for value, layout in zip(values, layouts, strict=True):
            for dim, axes in enumerate(layout.dims):
                if axes:
                    number = classes.find(value, dim)
                    sizes[number] = value.type.shape[dim]
                    counts[number] = math.lcm(counts.get(number, 1), mesh.extent(axes))

    for equation, choice in plan.choices.items():
        record(equation.inputs, choice.operands)
        record(equation.outputs, choice.results)
    record(program.outputs, plan.outputs)
    return sizes, counts


def _linked_classes(
    plan: LayoutPlan, mesh: AbstractMesh, classes: DimGroups, sizes: Mapping[int, int]
) -> dict[int, ClassGroup]:
    """Return the group of each padding class that an unevenly sharded reshape links with others.

    The reshape of 30 elements to 6×5, sharded along the 6, links a class of 30 elements with a class of 6. The group
    has 6 units; each unit is 5 elements of the first class and 1 element of the second.
    """
    groups: dict[int, ClassGroup] = {}
    for equation, choice in plan.choices.items():
        rule = rule_of(equation)
        if not rule.compound_dims:
            continue
        values = (*equation.inputs, *equation.outputs)
        for led_dims in uneven_leading_factors(rule, choice, mesh).values():
            first, *others = [classes.find(values[led.number], led.dim) for led in led_dims]
            for other in others:
                _link_classes(groups, sizes, first, other)
    return groups


def _link_classes(groups: dict[int, ClassGroup], sizes: Mapping[int, int], first: int, second: int) -> None:
    """Merge the groups of two padding classes, if all their classes have the same number of units."""
    first_group, second_group = groups.get(first, {first: 1}), groups.get(second, {second: 1})
    units = math.gcd(sizes[first] // first_group[first], sizes[second] // second_group[second])
    members = {**first_group, **second_group}
    if all(sizes[number] % units == 0 for number in members):
        merged = {number: sizes[number] // units for number in members}
        groups.update(dict.fromkeys(merged, merged))


class LedDim(NamedTuple):
    """A dim of an operand or result that a given factor leads, with its number of shards."""

    number: int  # index of the operand or result
    dim: int
    shards: int


def uneven_leading_factors(rule: FactorRule, choice: Choice, mesh: AbstractMesh) -> dict[int, list[LedDim]]:
    """Return the unevenly sharded factors that lead a compound dim, with all dims that they lead."""
    uneven: dict[int, list[LedDim]] = {}
    for factor in rule.compound & rule.leading:
        led_dims = _led_dims(factor, rule, choice, mesh)
        # If minor factors are sharded too, the leading factor is fully sharded, into single elements, which is even.
        if all(led.shards <= rule.sizes[factor] and rule.sizes[factor] % led.shards for led in led_dims):
            uneven[factor] = led_dims
    return uneven


def _led_dims(factor: int, rule: FactorRule, choice: Choice, mesh: AbstractMesh) -> list[LedDim]:
    tables, layouts = (*rule.operands, *rule.results), (*choice.operands, *choice.results)
    return [
        LedDim(index, dim, mesh.extent(layout.dims[dim]))
        for index, (dims, layout) in enumerate(zip(tables, layouts, strict=True))
        for dim, factors in enumerate(dims)
        if factors[:1] == (factor,)
    ]


def result_fills(
    equation: Equation, rule: FactorRule, number: int, operand_fills: Sequence[Fills], padded_shape: Shape
) -> Fills:
    """Return the fills of the result with index `number`, by the `padding` rule of the equation's op."""
    fills: list[Any] = []
    for factors, size in zip(rule.results[number], padded_shape, strict=True):
        if not factors or factors[0] in rule.exchange or size == math.prod(rule.sizes[f] for f in factors):
            fills.append(None)
            continue
        along_factor = [
            operand[dim]
            for operand, dims in zip(operand_fills, rule.operands, strict=True)
            for dim, operand_factors in enumerate(dims)
            if operand_factors[:1] == factors[:1]
        ]
        with np.errstate(all="ignore"):  # overflow in padding is harmless
            fills.append(equation.op.padding(along_factor))
    return tuple(fills)


def set_fill(fills: Fills, dim: int, fill: ScalarLike | None) -> Fills:
    """Return the fills after the padding of `dim` is set.

    The paddings of two dims overlap in a corner, so another dim keeps its fill only if the two fills are equal.
    """
    return tuple(
        fill if d == dim else other if other is not None and fill is not None and other == fill else None
        for d, other in enumerate(fills)
    )


def resized_fill(fill: ScalarLike | None, size: int, before: int, after: int, dtype: DType) -> Any:
    """Return the fill of a dim of `size` elements after its padded size changes; new elements are zeros."""
    if after <= before:
        return fill
    zero = SUM.neutral_scalar(dtype)
    return zero if before == size or (fill is not None and fill == zero) else None


def mask_padding(
    shard: Operand, layout: Layout, padded_shape: Shape, mesh: AbstractMesh, dim: int, size: int, fill: ScalarLike
) -> Any:
    """Return a shard in which the elements beyond `size` along `dim` of the global array are replaced by `fill`."""
    shape = shard.type.shape
    index = Iota(shape, dim, np.dtype(np.int32)).localize(ShardView(mesh, [layout], [padded_shape]))
    is_inside = Compare("LT")(index, full(shape, size, np.int32))
    return Select()(is_inside, shard, full(shape, fill, shard.type.dtype, shard.type.weak))


def rule_of(equation: Equation) -> FactorRule:
    """Return the factor rule of an equation's op for its operands."""
    return factor_rule(equation.op, tuple(value.type for value in equation.inputs))


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
