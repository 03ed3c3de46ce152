"""follow: an output that nobody pinned lies as the nearest pinned value that it was made from, element by element.

New parameters lie as the old ones and moments as moments, also where a loop carries them from step to step. Nearest is
counted in elementwise ops of the output's own type; inputs and constraints are pinned values. Where two are equally
near and lie differently, the cost decides.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.control.manual import Manual
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.layout import Layout, Pin


class _Near(NamedTuple):
    """How far away the nearest pinned value is, and its pin; None where several are as near and lie differently."""

    distance: int
    pin: Pin | None


_Known = dict[Value, _Near]


def infer_output_pins(
    program: Program, in_pins: Sequence[Pin], out_pins: Sequence[Pin | None]
) -> tuple[Pin | None, ...]:
    """`out_pins`, and pins for outputs that follow another value."""
    if all(pin is not None for pin in out_pins):
        return tuple(out_pins)
    known = {value: _Near(0, pin) for value, pin in zip(program.inputs, in_pins, strict=True)}
    _look(program, known)
    return tuple(
        pin if pin is not None else _following(number, known.get(value))
        for number, (value, pin) in enumerate(zip(program.outputs, out_pins, strict=True))
    )


def _look(program: Program, known: _Known) -> None:
    """Find what is near the values of a program whose inputs are known."""
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Constrain):
            known[equation.outputs[0]] = _Near(0, replace(op.pin, reason=f"the constraint at {equation.source}"))
        elif isinstance(op, Control) and not isinstance(op, Manual):  # whose results the user laid out by hand
            _look_inside(equation, op, known)
        elif isinstance(op, Elementwise):
            (result,) = equation.outputs
            alike = [value for value in equation.inputs if value.type.strong() is result.type.strong()]
            _note(result, [known[value] for value in alike if value in known], known)


def _look_inside(equation: Equation, op: Control, known: _Known) -> None:
    """What goes into programs, and what comes out: slices of an array lie as it does, but for the dim of the slices."""
    values = {
        "operand": [equation.inputs],
        "result": [equation.outputs],
        "entry": [program.inputs for program in op.programs],
        "exit": [program.outputs for program in op.programs],
    }
    bindings = [
        [[(end.kind, values[end.kind][end.program][end.number]) for end in ends] for ends in (c.sources, c.targets)]
        for c in op.bindings
    ]
    for binding, (takes, gives) in zip(op.bindings, bindings, strict=True):
        given = [known[value] for kind, value in takes if kind == "operand" and value in known]
        for kind, value in gives:
            if kind == "entry":
                _note(value, [_moved(near, -binding.boundary.leading) for near in given], known)
    for program in op.programs:
        _look(program, known)
    for binding, (takes, gives) in zip(op.bindings, bindings, strict=True):
        left = [known[value] for kind, value in takes if kind == "exit" and value in known]
        for kind, value in gives:
            if kind == "result":
                _note(value, [_moved(near, binding.boundary.leading) for near in left], known)


def _note(value: Value, found: Sequence[_Near], known: _Known) -> None:
    """A value that is made of others, to which these are near."""
    if not found:
        return
    distance = min(near.distance for near in found)
    pins = [near.pin for near in found if near.distance == distance]
    first = pins[0]
    agree = all(pin and first and (pin.layout, pin.open_dims) == (first.layout, first.open_dims) for pin in pins)
    known[value] = _Near(distance + 1, first if agree else None)


def _moved(near: _Near, leading: int) -> _Near:
    """The same with so many dims more in front, which nothing cuts, or less."""
    if near.pin is None or not leading:
        return near
    dims = near.pin.layout.dims
    layout = Layout(dims[-leading:] if leading < 0 else (((),) * leading + dims))
    open_dims = frozenset(dim + leading for dim in near.pin.open_dims if dim + leading >= 0)
    return _Near(near.distance, Pin(layout, open_dims, near.pin.reason))


def _following(number: int, near: _Near | None) -> Pin | None:
    if near is None or near.pin is None:
        return None
    return replace(near.pin, reason=f"output {number}, which follows {near.pin.reason or 'an input'},")
