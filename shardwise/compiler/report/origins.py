"""Layout origins: the layout in which the plan computes each value, and the pins that each of its mesh axes comes from.

A pin is a layout that the user requested for an input, an output or a constrained value. A mesh axis propagates forward
from a pinned value along factors. If no operand of an op has the axis, it propagated backward from a pinned result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.candidates.explicit_axes import decided_by_type, typed_axes
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.partition.reason import Conversion
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.shardings.factors import Dims
from shardwise.compiler.shardings.layout import Layout

INPUT, CONSTRAINT, TYPE, CHOSEN, FREE = "input", "constraint", "type", "chosen", "free"


@final
@dataclass(frozen=True, eq=False)
class LayoutOrigins:
    """Where the layouts of a plan come from.

    Attributes:
        layouts: the layout in which each value is computed.
        kinds: for each value, whether its layout is an input's (INPUT), a constraint's (CONSTRAINT), its type's
            (TYPE, if all its axes are Explicit) or CHOSEN.
        axis_pins: for each (value, axis), the names of the pins that the axis comes from.
        pins: the layout of each pin, by name.
        consumers: the planned equations that read each value, with the index of the operand.
    """

    layouts: dict[Value, Layout] = field(default_factory=dict)
    kinds: dict[Value, str] = field(default_factory=dict)
    axis_pins: dict[tuple[Value, str], tuple[str, ...]] = field(default_factory=dict)
    pins: dict[str, Layout] = field(default_factory=dict)
    consumers: dict[Value, list[tuple[Equation, int]]] = field(default_factory=dict)

    def pins_of(self, value: Value, axes: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return the names of the pins that a value's layout comes from, or that these of its axes come from."""
        axes = self.layouts[value].axes if axes is None else axes
        return tuple(dict.fromkeys(pin for axis in axes for pin in self.axis_pins.get((value, axis), ())))

    def conflicting_pins(self, equation: Equation, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the pins that are in conflict at a collective along `axes`.

        These are the pins behind the value's layout and the pins behind the layouts of its consumer.
        """
        reason = equation.reason
        if not isinstance(reason, Conversion):
            return ()
        pins = list(self.pins_of(reason.value, axes)) if reason.value in self.layouts else []
        for consumer, _ in self.consumers.get(reason.value, ()):
            if consumer.source == equation.source:
                others = (value for value in (*consumer.inputs, *consumer.outputs) if value is not reason.value)
                pins += [pin for value in others if value in self.layouts for pin in self.pins_of(value)]
        return tuple(dict.fromkeys(pins))


def layout_origins(problem: LayoutProblem, plan: LayoutPlan, names: Sequence[str] = ()) -> LayoutOrigins:
    """Return the origin of every layout of a plan. `names` are the names of the inputs."""
    origins = LayoutOrigins()
    for index, (value, pin) in enumerate(zip(problem.program.inputs, problem.in_pins, strict=True)):
        name = pin.reason or (names[index] if index < len(names) else f"input {index}")
        origins.layouts[value], origins.kinds[value] = pin.layout, INPUT
        _add_pin(origins, value, name, pin.layout)
    equations = [equation for equation in problem.planned if equation in plan.choices]
    mesh_axes, typed = problem.mesh.axis_names, typed_axes(problem.mesh, problem.shardings)
    for equation in equations:
        for index, value in enumerate(equation.inputs):
            origins.consumers.setdefault(value, []).append((equation, index))
        constraint = equation.op.constraint
        kind = CONSTRAINT if constraint else CHOSEN
        for value, layout in zip(equation.outputs, plan.choices[equation].results, strict=True):
            origins.layouts[value] = layout
            origins.kinds[value] = TYPE if typed and decided_by_type(value, mesh_axes, typed) else kind
        if constraint:
            _add_pin(origins, equation.outputs[0], equation.op.describe(equation.source), constraint.layout)
    for equation in equations:
        _propagate_pins(equation, plan, origins, equation.inputs, equation.outputs)
    for index, (value, out_pin) in enumerate(zip(problem.program.outputs, problem.out_pins, strict=True)):
        if out_pin is not None and value in origins.layouts:
            name = out_pin.reason or problem.out_names[index]
            origins.pins[name] = out_pin.layout
            for axis in out_pin.layout.axes:
                if origins.layouts[value].dim_of(axis) == out_pin.layout.dim_of(axis):
                    origins.axis_pins.setdefault((value, axis), (name,))
    for equation in reversed(equations):
        _propagate_pins(equation, plan, origins, equation.outputs, equation.inputs)
    return origins


def _add_pin(origins: LayoutOrigins, value: Value, name: str, layout: Layout) -> None:
    origins.pins[name] = layout
    origins.axis_pins.update(((value, axis), (name,)) for axis in layout.axes)


def _propagate_pins(
    equation: Equation, plan: LayoutPlan, origins: LayoutOrigins, sources: Sequence[Value], targets: Sequence[Value]
) -> None:
    """Propagate the pins of an equation's source values to its target values, along shared factors."""
    choice = plan.choices[equation]
    rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
    planned = {
        value: (layout, dims)
        for values, layouts, tables in (
            (equation.inputs, choice.operands, rule.operands),
            (equation.outputs, choice.results, rule.results),
        )
        for value, layout, dims in zip(values, layouts, tables, strict=True)
    }
    for target in targets:
        if target not in origins.layouts or target not in planned:
            continue
        layout, dims = planned[target]
        for axis in origins.layouts[target].axes:
            if (target, axis) in origins.axis_pins or layout.dim_of(axis) != origins.layouts[target].dim_of(axis):
                continue
            factors = _sharded_factors(layout, dims, axis)
            pins = tuple(
                dict.fromkeys(
                    pin
                    for source in sources
                    if source in planned
                    and (factors & _sharded_factors(*planned[source], axis) or layout.is_partial(axis))
                    for pin in origins.axis_pins.get((source, axis), ())
                )
            )
            if pins:
                origins.axis_pins[target, axis] = pins


def _sharded_factors(layout: Layout, dims: Dims, axis: str) -> set[int]:
    """Return the factors of the dim that is sharded along `axis`."""
    dim = layout.dim_of(axis)
    return set() if dim is None else set(dims[dim])
