"""Pins: values around a collective, with layouts that could make the collective unnecessary.

These are the operand of the collective, in the layout that the consumer needs or with the same axes on another dim; and
the results of the consumer and the operands of the producer, in such layouts.
"""

from collections.abc import Iterator, Mapping

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Conversion, Exchange, is_inserted
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh


def inserted_collectives(problem: LayoutProblem, local: LocalProgram) -> list[Equation]:
    """Return the collectives that the partitioner inserted, except along Explicit axes, where types decide."""
    explicit = frozenset(problem.mesh.explicit_axes)
    return [
        equation
        for equation in local.collectives()
        if is_inserted(equation.reason) and explicit.isdisjoint(equation.op.communicates_along)
    ]


def pin_candidates(problem: LayoutProblem, plan: LayoutPlan, costliest: Equation) -> Iterator[tuple[Value, Layout]]:
    """Yield values around a collective with layouts that could avoid it, most promising first, without duplicates."""
    choices = plan.choices
    axes = costliest.op.communicates_along
    layouts = dict(zip(problem.program.inputs, [pin.layout for pin in problem.in_pins], strict=True))
    producers: dict[Value, Equation] = {}
    for equation, choice in choices.items():
        layouts.update(zip(equation.outputs, choice.results, strict=True))
        producers.update(dict.fromkeys(equation.outputs, equation))
    values, consumers = _moved_values(costliest, choices)
    near = [value for consumer in consumers for value in consumer.outputs]
    near += [value for consumer in consumers for value in consumer.inputs if value not in values]
    near += [operand for value in values if value in producers for operand in producers[value].inputs]
    pins = [
        (value, layout) for value in values for layout in layouts_with(value, layouts.get(value), axes, problem.mesh)
    ]
    if isinstance(costliest.reason, Conversion):
        pins.append((costliest.reason.value, Layout(costliest.reason.after.dims)))
    for value in near:
        pins += [(value, layout) for layout in layouts_with(value, layouts.get(value), axes, problem.mesh)]
    manual = _manual_axes(problem)
    seen = set()
    for value, layout in pins:
        if value in problem.free or layouts.get(value) == layout or (value, layout) in seen:
            continue
        if manual.get(value, frozenset()).isdisjoint(layout.axes):
            seen.add((value, layout))
            yield value, layout


def _manual_axes(problem: LayoutProblem) -> dict[Value, frozenset[str]]:
    """Return, for each value inside a `shard_map`, the axes that are manual there, which no constraint can name."""
    inside: dict[Value, frozenset[str]] = {}
    for equation, axes in problem.unfolded.manual.items():
        values = equation.inputs if equation.op.leaves_region else equation.outputs
        inside.update(dict.fromkeys(values, axes))
    return inside


def _moved_values(costliest: Equation, choices: Mapping[Equation, Choice]) -> tuple[list[Value], list[Equation]]:
    """Return the values that a collective moves, and the equations that need it.

    If an op exchanges data between shards by its own rule, these are the op's operands.
    """
    same_source = [equation for equation in choices if equation.source == costliest.source]
    reason = costliest.reason
    if isinstance(reason, Conversion):
        return [reason.value], [equation for equation in same_source if reason.value in equation.inputs]
    consumers = [e for e in same_source if isinstance(reason, Exchange) and e.op.name == reason.site.op]
    return list(dict.fromkeys(value for consumer in consumers for value in consumer.inputs)), consumers


def layouts_with(value: Value, layout: Layout | None, axes: tuple[str, ...], mesh: AbstractMesh) -> Iterator[Layout]:
    """Yield the layout with `axes` moved to each dim that they shard evenly, and without them."""
    if layout is None:
        return
    dims = tuple(tuple(axis for axis in dim if axis not in axes) for dim in layout.dims)
    for dim, size in enumerate(value.type.shape):
        moved = (*dims[dim], *axes)
        if size % mesh.extent(moved) == 0 and moved != layout.dims[dim]:
            yield Layout(dims).with_dim(dim, moved)
    yield Layout(dims)
