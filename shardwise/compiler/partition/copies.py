"""Copies: all copies of each value, in several layouts and with several paddings.

A copy that a consumer needs is converted from the cheapest existing copy. Every intermediate copy of the conversion is
stored, so each reshard step is emitted once and shared. A *free* value (a constant, or cheap to compute from constants)
is computed in every layout in which it is needed, and never communicated.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType, ScalarLike
from shardwise.compiler.ops.collective.collectives import Collective, LocalSlice, PadOrTrim, ToPartial
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.partition.local_context import Scope, Shape, ShardView
from shardwise.compiler.partition.padding import (
    Fills,
    mask_padding,
    resized_fill,
    result_fills,
    rule_of,
    set_fill,
)
from shardwise.compiler.partition.reason import (
    Conversion,
    Exchange,
    Masking,
    OpSite,
    Repad,
    Reshard,
    Site,
    UserCollective,
    inserted_because,
)
from shardwise.compiler.partition.reshard import Step, reshard_steps, step_cost
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh


@final
@dataclass(frozen=True)
class ShardedCopy:
    """One copy of a value.

    Attributes:
        tracer: the shard of this device, in the local program.
        layout: the layout of the copy.
        padded_shape: the padded global shape.
        fills: for each dim, the scalar in its padding, or None if unknown.
    """

    tracer: Any
    layout: Layout
    padded_shape: Shape
    fills: Fills


@final
class Copies:
    """The copies of every value of a program."""

    def __init__(self, problem: LayoutProblem, plan: LayoutPlan):
        self.mesh = problem.mesh
        self.chip = plan.chip
        self.choices = plan.choices
        self.free = problem.free
        self.producers = {value: e for e in problem.unfolded.equations for value in e.outputs}
        self._copies: dict[Value, list[ShardedCopy]] = defaultdict(list)
        self._free_copies: dict[tuple[Value, Layout, Shape], ShardedCopy] = {}
        self._sites: dict[Value, Site] = {}

    def add(self, value: Value, copy: ShardedCopy, producer: Site) -> None:
        """Store the first copy of a value, and the site of its producer."""
        self._copies[value].append(copy)
        self._sites[value] = producer

    def producer_site(self, value: Value) -> Site:
        """Return the site that produces a value, for reasons."""
        if value in self._sites:
            return self._sites[value]
        return OpSite.from_equation(self.producers[value]) if value in self.producers else "a value"

    def get(self, value: Value, layout: Layout, padded_shape: Shape, consumer: Site, scope: Scope) -> ShardedCopy:
        """Return a copy in this layout and padding, converted from the cheapest stored copy if necessary."""
        if value in self.free:
            return self._compute_free(value, layout, padded_shape, scope)
        for copy in self._copies[value]:
            if copy.layout == layout and copy.padded_shape == padded_shape:
                return copy
        routes = [(self._route(value.type, copy, layout, padded_shape), copy) for copy in self._copies[value]]
        (steps, _), copy = min(routes, key=lambda route: route[0][1])
        for op, reached in steps:
            with inserted_because(self._conversion(value, copy, layout, op, consumer)):
                copy = _apply_step(copy, op, reached, value.type.shape, self.mesh)
            if reached is not None:
                self._copies[value].append(copy)
        return copy

    def mask(self, value: Value, copy: ShardedCopy, dim: int, fill: ScalarLike, consumer: Site) -> ShardedCopy:
        """Return a copy whose padding along `dim` is `fill`. It replaces the stored copy."""
        if copy.fills[dim] is not None and copy.fills[dim] == fill:
            return copy
        with inserted_because(Masking(consumer, dim, fill)):
            tracer = mask_padding(
                copy.tracer, copy.layout, copy.padded_shape, self.mesh, dim, value.type.shape[dim], fill
            )
        masked = replace(copy, tracer=tracer, fills=set_fill(copy.fills, dim, fill))
        if value in self._copies:
            self._copies[value] = [masked if other is copy else other for other in self._copies[value]]
        return masked

    def _compute_free(self, value: Value, layout: Layout, padded_shape: Shape, scope: Scope) -> ShardedCopy:
        """Return a copy of a free value in this layout, computed once per layout and padding."""
        key = (value, layout, padded_shape)
        if key not in self._free_copies:
            self._free_copies[key] = self._emit_free(value, layout, padded_shape, scope)
        return self._free_copies[key]

    def _emit_free(self, value: Value, layout: Layout, padded_shape: Shape, scope: Scope) -> ShardedCopy:
        if layout.partial:
            copy = self._compute_free(value, Layout(layout.dims), padded_shape, scope)
            summed = tuple(axis for axis, reduction in layout.partial if reduction is SUM)
            # Zeros are also terms of a sum that is zero, and every value is a term of a maximum that equals it.
            if not summed or self._is_zero(value):
                return replace(copy, layout=layout)
            term = ToPartial(summed)(copy.tracer)
            return replace(copy, tracer=term, layout=layout)
        equation = self.producers[value]
        rule = rule_of(equation)
        (dims,) = rule.results
        if all(rule.is_paddable(factors) and factors[0] not in rule.exchange for factors in dims):
            by_factor = {factors[0]: (layout.dims[dim], padded_shape[dim]) for dim, factors in enumerate(dims)}
            operands = []
            for operand, operand_dims in zip(equation.inputs, rule.operands, strict=True):
                # A dim of size 1 has no factor.
                needed = [by_factor[factors[0]] if factors else ((), 1) for factors in operand_dims]
                operand_layout = Layout(tuple(axes for axes, _ in needed))
                operands.append(self._compute_free(operand, operand_layout, tuple(size for _, size in needed), scope))
            return localize(equation, rule, operands, [layout], [padded_shape], self.mesh, scope)[0]
        # Ops such as a reshape of constants cannot be padded: compute them replicated, then slice locally.
        operands = [
            self._compute_free(operand, Layout.replicated(operand.type.ndim), operand.type.shape, scope)
            for operand in equation.inputs
        ]
        replicated = Layout.replicated(value.type.ndim)
        (copy,) = localize(equation, rule, operands, [replicated], [value.type.shape], self.mesh, scope)
        for op, reached in self._route(value.type, copy, layout, padded_shape)[0]:
            copy = _apply_step(copy, op, reached, value.type.shape, self.mesh)
        return copy

    def _is_zero(self, value: Value) -> bool:
        """Return whether a free value is a constant of zeros, such as the initial value of a sum."""
        fill = self._fill(value)
        return fill is not None and bool(fill == 0)

    def _fill(self, value: Value) -> Any:
        """Return the scalar that all elements of a free value equal; None if unknown."""
        equation = self.producers[value]
        if len(equation.inputs) > 1:
            return None
        return equation.op.padding([self._fill(operand) for operand in equation.inputs])

    def _route(
        self, type: ArrayType, copy: ShardedCopy, layout: Layout, padded_shape: Shape
    ) -> tuple[list[Step], float]:
        """Return the cheapest steps from a copy to a layout and padding, and their cost.

        Padded sizes change in the layout of the copy, in the new layout, in a layout in which the dims that change size
        are unsharded, or each in the layout that does not shard its dim, whichever is cheapest.
        """
        before = copy.padded_shape
        if before == padded_shape:
            reshard, cost = self._reshard(type, padded_shape, copy.layout, layout)
            return list(reshard), cost
        unsharded = Layout(
            tuple(() if before[dim] != padded_shape[dim] else axes for dim, axes in enumerate(copy.layout.dims)),
            copy.layout.partial,
        )
        routes = []
        for middle in dict.fromkeys([copy.layout, layout, unsharded]):
            if not all(middle.padded_shape(shape, self.mesh) == shape for shape in (before, padded_shape)):
                continue
            first, first_cost = self._reshard(type, before, copy.layout, middle)
            resizes, resize_cost = self._resize_steps(type, before, padded_shape, middle)
            second, second_cost = self._reshard(type, padded_shape, middle, layout)
            steps = _fuse_resize_and_slice([*first, *resizes, *second])
            routes.append((steps, first_cost + resize_cost + second_cost))
        sizes = zip(copy.layout.dims, before, padded_shape, strict=True)
        between = tuple(old if axes else new for axes, old, new in sizes)
        if all(each.padded_shape(between, self.mesh) == between for each in (copy.layout, layout)):
            resizes, first_cost = self._resize_steps(type, before, between, copy.layout)
            reshard, reshard_cost = self._reshard(type, between, copy.layout, layout)
            trims, last_cost = self._resize_steps(type, between, padded_shape, layout)
            steps = _fuse_resize_and_slice([*resizes, *reshard, *trims])
            routes.append((steps, first_cost + reshard_cost + last_cost))
        return min(routes, key=lambda route: route[1])

    def _reshard(
        self, type: ArrayType, padded_shape: Shape, before: Layout, after: Layout
    ) -> tuple[tuple[Step, ...], float]:
        return reshard_steps(type.with_shape(padded_shape), self.mesh, before, after, self.chip)

    def _resize_steps(self, type: ArrayType, before: Shape, after: Shape, layout: Layout) -> tuple[list[Step], float]:
        """Return the steps that change padded sizes in a layout, and their cost.

        Along a sharded dim, shard boundaries move, so data moves between devices.
        """
        steps: list[Step] = []
        cost, shape, costs = 0.0, list(before), Costs(self.chip, self.mesh)
        for dim, axes in enumerate(layout.dims):
            if before[dim] == after[dim]:
                continue
            count = self.mesh.extent(axes)
            size = after[dim] // count
            op = TakeWindow(dim, axes, count, 0, size, size) if axes else PadOrTrim(dim, size)
            cost += step_cost(op, type.with_shape(layout.shard_shape(shape, self.mesh)), costs)
            shape[dim] = after[dim]
            steps.append((op, layout))
        return steps, cost

    def _conversion(
        self, value: Value, copy: ShardedCopy, layout: Layout, op: Collective, consumer: Site
    ) -> Conversion:
        producer = self.producer_site(value)
        if isinstance(op, TakeWindow):
            size = copy.tracer.type.shape[op.dim]
            return Repad(value, copy.layout, layout, producer, consumer, op.dim, size, op.width)
        is_loop_sum = copy.layout.partial and isinstance(producer, OpSite) and producer.after_loop
        summed = self._summed(value, copy.layout) if is_loop_sum else ()
        return Reshard(value, copy.layout, layout, producer, consumer, summed=summed)

    def _summed(self, value: Value, layout: Layout) -> tuple[OpSite, ...]:
        """Return the ops inside loops whose results are the terms of an unreduced value."""
        sites: dict[OpSite, None] = {}
        pending, seen = [value], {value}
        while pending:
            term = pending.pop()
            equation = self.producers.get(term)
            choice = self.choices.get(equation) if equation is not None else None
            if equation is None or choice is None or not _shares_terms(choice.results[0], layout):
                continue
            operands = zip(equation.inputs, choice.operands, strict=True)
            terms = [operand for operand, operand_layout in operands if _shares_terms(operand_layout, layout)]
            if not terms:
                sites[OpSite.from_equation(equation)] = None
            pending += [operand for operand in terms if operand not in seen]
            seen.update(terms)
        return tuple(sites)


def localize(
    equation: Equation,
    rule: FactorRule,
    operands: Sequence[ShardedCopy],
    layouts: Sequence[Layout],
    padded_shapes: Sequence[Shape],
    mesh: AbstractMesh,
    scope: Scope,
) -> list[ShardedCopy]:
    """Emit an equation on the shards of its operands, by the `localize` rule of its op.

    Args:
        equation: the equation of the unpartitioned program.
        rule: the factor rule of its op.
        operands: copies of the operands, in the layouts that the plan chose.
        layouts: the layouts of the results.
        padded_shapes: the padded global shapes of the results.
        mesh: the mesh.
        scope: the scope in which the equation is emitted.
    """
    op = equation.op
    view = ShardView(
        mesh,
        layouts,
        padded_shapes,
        tuple(value.type for value in equation.inputs),
        [operand.layout for operand in operands],
        [operand.tracer.type.shape for operand in operands],
        scope.manual_axes,
    )
    exchange_axes = _exchange_axes(rule, [operand.layout for operand in operands], layouts)
    reason: Exchange | UserCollective | None = None
    if op.axis_names:
        reason = UserCollective(tuple(sorted(op.axis_names, key=repr)))
    elif exchange_axes:
        reason = Exchange(OpSite.from_equation(equation), exchange_axes)
    with inserted_because(reason):
        results = op.localize(view, *(operand.tracer for operand in operands))
    operand_fills = [operand.fills for operand in operands]
    return [
        ShardedCopy(tracer, layout, shape, result_fills(equation, rule, index, operand_fills, shape))
        for index, (tracer, layout, shape) in enumerate(
            zip((results,) if op.single else results, layouts, padded_shapes, strict=True)
        )
    ]


def _shares_terms(layout: Layout, other: Layout) -> bool:
    """Return whether two layouts are partial over the same axis."""
    return not set(layout.partial).isdisjoint(other.partial)


def _exchange_axes(rule: FactorRule, operands: Sequence[Layout], results: Sequence[Layout]) -> tuple[str, ...]:
    """Return the mesh axes along which the op exchanges data between shards."""
    tables, layouts = (*rule.operands, *rule.results), (*operands, *results)
    return tuple(
        sorted(
            {
                axis
                for dims, layout in zip(tables, layouts, strict=True)
                for factors, axes in zip(dims, layout.dims, strict=True)
                if factors and factors[0] in rule.exchange
                for axis in axes
            }
        )
    )


def _apply_step(
    copy: ShardedCopy, op: Collective, reached: Layout | None, shape: Shape, mesh: AbstractMesh
) -> ShardedCopy:
    """Apply one reshard step to a copy, and return the new copy.

    Args:
        copy: a copy of a value.
        op: the op of the step.
        reached: the layout after the step; None if no layout of the mesh describes the intermediate shards.
        shape: the shape of the value without padding.
        mesh: the mesh.
    """
    moved = replace(copy, tracer=op(copy.tracer), layout=reached or copy.layout)
    dim = op.resized_dim
    if reached is None or dim is None:
        return moved
    before = copy.padded_shape[dim]
    after = moved.tracer.type.shape[dim] * mesh.extent(reached.dims[dim])
    if after == before:
        return moved
    padded_shape = tuple(after if d == dim else size for d, size in enumerate(copy.padded_shape))
    fill = resized_fill(copy.fills[dim], shape[dim], before, after, moved.tracer.type.dtype)
    return replace(moved, padded_shape=padded_shape, fills=set_fill(copy.fills, dim, fill))


def _fuse_resize_and_slice(steps: Sequence[Step]) -> list[Step]:
    """Fuse a resize and the local slice of its result into one op, which does not materialize the resized array."""
    fused: list[Step] = []
    for op, reached in steps:
        match fused[-1][0] if fused else None, op:
            case PadOrTrim() as resize, LocalSlice() if resize.dim == op.dim:
                fused[-1] = (replace(op, padded_size=resize.size), reached)
            case _:
                fused.append((op, reached))
    return fused
