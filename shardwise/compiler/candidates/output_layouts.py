"""output_layouts: an output without a pin gets the layout of the nearest pinned value that it is computed from.

So the new parameters of a training step get the layouts of the old parameters, and the new moments get the layouts of
the old moments, even through loop carries. Pinned values are inputs and constrained values. The distance is the number
of elementwise ops in between, counting only operands of the output's own type. If two pinned values with different
layouts are equally near, the output gets no pin, and the planner chooses by cost.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shardwise.compiler.control.manual import Manual
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.layout import Layout, Pin


class _Nearest(NamedTuple):
    """The distance to the nearest pinned value, and its pin; None if equally near values have different layouts."""

    distance: int
    pin: Pin | None


_NearestPins = dict[Value, _Nearest]


def infer_output_pins(
    program: Program, in_pins: Sequence[Pin], out_pins: Sequence[Pin | None], out_names: Sequence[str]
) -> tuple[Pin | None, ...]:
    """Return the pins of all outputs: `out_pins`, with inferred pins in place of None."""
    if all(pin is not None for pin in out_pins):
        return tuple(out_pins)
    nearest = {value: _Nearest(0, pin) for value, pin in zip(program.inputs, in_pins, strict=True)}
    _visit(program, nearest)
    return tuple(
        pin if pin is not None else _output_pin(name, nearest.get(value))
        for name, value, pin in zip(out_names, program.outputs, out_pins, strict=True)
    )


def _visit(program: Program, nearest: _NearestPins) -> None:
    """Find the nearest pins of the values of a program, given the nearest pins of its inputs."""
    for equation in program.equations:
        match op := equation.op:
            case Constrain():
                pin = op.constraint
                if op.axes is not None:
                    pin = _merged_pin(pin, op.axes, nearest.get(equation.inputs[0]))
                nearest[equation.outputs[0]] = _Nearest(0, replace(pin, reason=op.describe(equation.source)))
            case Manual():
                pass  # `out_specs` give the layouts of a shard_map's results
            case Control():
                _visit_control(equation, op, nearest)
            case Op(is_elementwise=True):
                (result,) = equation.outputs
                same_type = [value for value in equation.inputs if value.type.strong() is result.type.strong()]
                _record(result, [nearest[value] for value in same_type if value in nearest], nearest)


def _merged_pin(pin: Pin, axes: Sequence[str], operand: _Nearest | None) -> Pin:
    """Return a pin along `axes`, with the layout of the operand's nearest pin along the others."""
    if operand is None or operand.pin is None:
        return Pin(pin.layout, frozenset(range(len(pin.layout.dims))))
    pairs = zip(pin.layout.dims, operand.pin.layout.dims, strict=True)
    dims = [(*of_dim, *(axis for axis in others if axis not in axes)) for of_dim, others in pairs]
    return Pin(Layout(tuple(dims), pin.layout.partial), pin.open_dims | operand.pin.open_dims)


def _visit_control(equation: Equation, op: Control, nearest: _NearestPins) -> None:
    """Follow the bindings of a control op into its programs and out of them.

    The slices of an array have its layout without the leading dim, and a stack of slices has an unsharded leading dim.
    """
    values = {
        "operand": [equation.inputs],
        "result": [equation.outputs],
        "entry": [program.inputs for program in op.programs],
        "exit": [program.outputs for program in op.programs],
    }
    bindings = [
        [[(end.kind, values[end.kind][end.program][end.number]) for end in ends] for ends in (b.sources, b.targets)]
        for b in op.bindings
    ]
    for binding, (sources, targets) in zip(op.bindings, bindings, strict=True):
        outside = [nearest[value] for kind, value in sources if kind == "operand" and value in nearest]
        for kind, value in targets:
            if kind == "entry":
                _record(value, [_shift_dims(source, -binding.boundary.leading) for source in outside], nearest)
    for program in op.programs:
        _visit(program, nearest)
    for binding, (sources, targets) in zip(op.bindings, bindings, strict=True):
        inside = [nearest[value] for kind, value in sources if kind == "exit" and value in nearest]
        for kind, value in targets:
            if kind == "result":
                _record(value, [_shift_dims(source, binding.boundary.leading) for source in inside], nearest)


def _record(value: Value, sources: Sequence[_Nearest], nearest: _NearestPins) -> None:
    """Record the nearest pin of a value that is computed from values with these nearest pins."""
    if not sources:
        return
    distance = min(source.distance for source in sources)
    pins = [source.pin for source in sources if source.distance == distance]
    first = pins[0]
    agree = all(pin and first and (pin.layout, pin.open_dims) == (first.layout, first.open_dims) for pin in pins)
    nearest[value] = _Nearest(distance + 1, first if agree else None)


def _shift_dims(source: _Nearest, leading: int) -> _Nearest:
    """Return the pin with `leading` unsharded dims added in front, or removed if negative."""
    if source.pin is None or not leading:
        return source
    dims = source.pin.layout.dims
    layout = Layout(dims[-leading:] if leading < 0 else (((),) * leading + dims))
    open_dims = frozenset(dim + leading for dim in source.pin.open_dims if dim + leading >= 0)
    return _Nearest(source.distance, Pin(layout, open_dims, source.pin.reason))


def _output_pin(name: str, nearest: _Nearest | None) -> Pin | None:
    if nearest is None or nearest.pin is None:
        return None
    return replace(nearest.pin, reason=f"{name}, which follows {nearest.pin.reason or 'an input'},")
