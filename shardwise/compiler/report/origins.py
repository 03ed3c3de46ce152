"""Origins: of every value, the layout in which the plan makes it, and which pins brought each axis there.

A pin is what the user asked of an input, an output or a constrained value. An axis follows a factor from a pinned value
on through the program; where none of the operands brings it, it is looked for behind: a result whose pin needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.shardings.factors import Dims
from shardwise.compiler.shardings.layout import Layout

INPUT, CONSTRAINT, CHOSEN, FREE = "input", "constraint", "chosen", "free"


@final
@dataclass(frozen=True, eq=False)
class LayoutOrigins:
    """`made`: the layout of each value. `brought`: the pins that brought an axis to a value, as `pins` names them."""

    made: dict[Value, Layout]
    kind: dict[Value, str]
    brought: dict[tuple[Value, str], tuple[str, ...]]
    pins: dict[str, Layout]
    takers: dict[Value, list[tuple[Equation, int]]] = field(default_factory=dict)

    def of(self, value: Value, axes: Sequence[str] | None = None) -> tuple[str, ...]:
        """The pins behind a value's layout, or behind these axes of it."""
        wanted = self.made[value].axes if axes is None else axes
        return tuple(dict.fromkeys(pin for axis in wanted for pin in self.brought.get((value, axis), ())))


def layout_origins(sharded: ShardedProgram, plan: LayoutPlan, names: Sequence[str] = ()) -> LayoutOrigins:
    """Where every layout of a plan comes from. `names` are the inputs'."""
    found = LayoutOrigins({}, {}, {}, {})
    for number, (value, pin) in enumerate(zip(sharded.program.inputs, sharded.in_pins, strict=True)):
        name = pin.reason or (names[number] if number < len(names) else f"input {number}")
        found.made[value], found.kind[value], found.pins[name] = pin.layout, INPUT, pin.layout
        found.brought.update(((value, axis), (name,)) for axis in pin.layout.axes)
    equations = [equation for equation in sharded.planned if equation in plan.choices]
    for equation in equations:
        for place, value in enumerate(equation.inputs):
            found.takers.setdefault(value, []).append((equation, place))
        constrained = isinstance(equation.op, Constrain)
        for value, layout in zip(equation.outputs, plan.choices[equation].results, strict=True):
            found.made[value], found.kind[value] = layout, CONSTRAINT if constrained else CHOSEN
        if isinstance(equation.op, Constrain):
            name = f"the constraint at {equation.source}"
            found.pins[name] = equation.op.pin.layout
            found.brought.update(((equation.outputs[0], axis), (name,)) for axis in equation.op.pin.layout.axes)
    for equation in equations:
        _along(equation, plan, found, equation.inputs, equation.outputs)
    for number, (value, asked) in enumerate(zip(sharded.program.outputs, sharded.out_pins, strict=True)):
        if asked is not None and value in found.made:
            name = asked.reason or f"output {number}"
            found.pins[name] = asked.layout
            for axis in asked.layout.axes:
                if found.made[value].dim_of(axis) == asked.layout.dim_of(axis):
                    found.brought.setdefault((value, axis), (name,))
    for equation in reversed(equations):
        _along(equation, plan, found, equation.outputs, equation.inputs)
    return found


def _along(
    equation: Equation, plan: LayoutPlan, found: LayoutOrigins, known: Sequence[Value], asked: Sequence[Value]
) -> None:
    """Hand the pins of the known values of an equation on to those that are asked, factor by factor."""
    choice = plan.choices[equation]
    rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
    lies = {
        value: (layout, dims)
        for values, layouts, tables in (
            (equation.inputs, choice.operands, rule.operands),
            (equation.outputs, choice.results, rule.results),
        )
        for value, layout, dims in zip(values, layouts, tables, strict=True)
    }
    for value in asked:
        if value not in found.made or value not in lies:
            continue
        layout, dims = lies[value]
        for axis in found.made[value].axes:
            if (value, axis) in found.brought or layout.dim_of(axis) != found.made[value].dim_of(axis):
                continue
            mine = _factors(layout, dims, axis)
            pins = tuple(
                dict.fromkeys(
                    pin
                    for other in known
                    if other in lies and (mine & _factors(*lies[other], axis) or axis in _summed(layout))
                    for pin in found.brought.get((other, axis), ())
                )
            )
            if pins:
                found.brought[value, axis] = pins


def _factors(layout: Layout, dims: Dims, axis: str) -> set[int]:
    dim = layout.dim_of(axis)
    return set() if dim is None else set(dims[dim])


def _summed(layout: Layout) -> set[str]:
    return {axis for axis, _ in layout.partial}
