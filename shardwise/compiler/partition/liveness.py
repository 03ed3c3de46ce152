"""Liveness: the values that one device holds while each equation of a local program runs.

The analysis sweeps over the program in order. Arguments live to the end; donated arguments die at their last use.
Values inside kernels and views are never stored (`kernels.py`). An elementwise result reuses the buffer of an operand
that dies at the same equation. Values in host memory are not counted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.partition.local_program import LocalProgram


@final
@dataclass(frozen=True)
class Held:
    """A value in memory: the op that computed it (`what`), the type of its shard, and the user's source line."""

    what: str
    type: str
    bytes: int
    source: Source


class Level(NamedTuple):
    """A program, the position of its running equation, and the values that the program itself holds at that point."""

    program: Program
    place: int
    live: Mapping[Value, Held]


def peak(local: LocalProgram, donated: Collection[int] = ()) -> tuple[int, list[Level]]:
    """Return the peak bytes of a device, and the stack of nested programs that run at the peak.

    Args:
        local: the program of one device.
        donated: the inputs whose buffers are reused for outputs.
    """
    sweep = _sweep(local, donated)
    return sweep.peak_bytes, sweep.at_peak()


def peak_bytes(local: LocalProgram, donated: Collection[int] = ()) -> int:
    """Return the peak bytes of a device.

    Args:
        local: the program of one device.
        donated: the inputs whose buffers are reused for outputs.
    """
    return _sweep(local, donated).peak_bytes


def _sweep(local: LocalProgram, donated: Collection[int]) -> "Sweep":
    inputs = {value: Held("input", "", value.type.nbytes, NOWHERE) for value in local.program.inputs}
    return Sweep(local, inputs, donated)


def total_bytes(program: Program) -> int:
    """Return the bytes of all values, in nested programs too. This is an upper bound of the live bytes."""
    inner = sum(total_bytes(inner) for equation in program.equations for inner in equation.op.programs)
    results = sum(value.type.nbytes for equation in program.equations for value in equation.outputs)
    return inner + results + sum(value.type.nbytes for value in program.inputs)


def values_on_host(program: Program) -> frozenset[Value]:
    """Return the values in host memory: inputs that ops copy to the device, and results that ops copied to the host."""
    on_host: set[Value] = set()

    def passes_on(equation: Equation) -> bool:
        return equation.op.fusion.is_barrier and not on_host.isdisjoint((*equation.inputs, *equation.outputs))

    for equation in reversed(program.equations):
        if equation.op.reads_host_memory or passes_on(equation):
            on_host.update(equation.inputs)
    for equation in program.equations:
        if equation.op.writes_host_memory or passes_on(equation):
            on_host.update(equation.outputs)
    return frozenset(on_host)


class Sweep:
    """One pass over a local program that tracks the live values.

    Attributes:
        peak_bytes: the most bytes that are live at once.
        peak_visit: the index of the visited equation at the peak.
        found: the live values at visit `until`, if it was given; the sweep stops there.
    """

    def __init__(self, local: LocalProgram, inputs: Mapping[Value, Held], donated: Collection[int], until: int = -1):
        self.local = local
        self.on_host = values_on_host(local.program)
        self.inputs = inputs = {value: held for value, held in inputs.items() if value not in self.on_host}
        self.donated = donated
        self.until = until
        self.enclosing: list[Level] = []  # the programs that enclose the current one
        self.enclosing_bytes = 0
        self.visit = self.peak_visit = 0
        self.peak_bytes = sum(held.bytes for held in inputs.values())
        self.found: list[Level] = [Level(local.program, 0, inputs)]
        mortal = {local.program.inputs[number] for number in donated}
        self._program(local.program, dict(inputs), mortal, 1, 0)

    def at_peak(self) -> list[Level]:
        """Return the live values at the peak, by a second sweep that stops there."""
        return Sweep(self.local, self.inputs, self.donated, until=self.peak_visit).found

    def on_equation(self, equation: Equation, fused: frozenset[Value], live_bytes: int, times: int, depth: int) -> None:
        """Called for each equation that is not a view, before its memory is counted. `fused`: never stored."""

    def on_new_peak(self) -> None:
        """Called when the live bytes exceed the previous peak."""

    def _program(self, program: Program, live: dict[Value, Held], mortal: set[Value], times: int, depth: int) -> None:
        """Sweep over a program. `live` are the inputs that the program itself holds; the values in `mortal` may die."""
        groups = self.local.kernel_groups(program)
        fused, views = groups.unstored, groups.views
        virtual = fused | views | self.on_host
        last = _last_uses(program, virtual)
        dying: dict[int, list[Value]] = {}
        for value, place in last.items():
            dying.setdefault(place, []).append(value)
        own_bytes = sum(held.bytes for held in live.values())
        for place, equation in enumerate(program.equations):
            for value in equation.outputs:
                if value in virtual:
                    continue
                reused = _reused_operand(equation, value, live, mortal, last, place)
                if reused is not None:
                    own_bytes -= live.pop(reused).bytes
                live[value] = Held(equation.op.name, str(value.type), value.type.nbytes, equation.source)
                own_bytes += value.type.nbytes
                mortal.add(value)
            if isinstance(equation.op, Control):
                self._inner(equation, equation.op, Level(program, place, live), own_bytes, times, depth)
            else:
                if views.isdisjoint(equation.outputs):
                    self.on_equation(equation, fused, self.enclosing_bytes + own_bytes, times, depth)
                self._visit(program, place, live, own_bytes)
            if 0 <= self.until <= self.visit:
                return
            for value in dying.get(place, ()):
                if value in live and value in mortal:
                    own_bytes -= live.pop(value).bytes

    def _visit(self, program: Program, place: int, live: Mapping[Value, Held], own_bytes: int) -> None:
        self.visit += 1
        if self.enclosing_bytes + own_bytes > self.peak_bytes:
            self.peak_bytes = self.enclosing_bytes + own_bytes
            self.peak_visit = self.visit
            self.on_new_peak()
        if self.visit == self.until:
            self.found = [*self.enclosing, Level(program, place, live)]

    def _inner(self, equation: Equation, op: Control, around: Level, own_bytes: int, times: int, depth: int) -> None:
        """Sweep over the programs of a control op.

        Its caller holds constants and carries; the programs hold slices, and what another program passes on to them. If
        programs run together, each for another iteration, what one writes exists beside what another reads.
        """
        inner_times = times * (1 if op.trip_count is None else op.trip_count)
        passed, sliced = set[Value](), set[Value]()
        for binding in op.bindings:
            entries = {op.programs[e.program].inputs[e.number] for e in binding.targets if e.kind == "entry"}
            if binding.sources[0].kind == "exit":
                passed |= entries
            elif binding.boundary.leading:
                sliced |= entries

        def held(value: Value) -> Held:
            what = "passed on in the loop" if value in passed else f"a slice for {op.name}"
            return Held(what, str(value.type), value.type.nbytes, equation.source)

        inputs = [value for program in op.programs for value in program.inputs]
        written = {value: held(value) for value in inputs if value in passed}
        written_bytes = sum(value.type.nbytes for value in written)
        self.enclosing.append(around._replace(live={**around.live, **written}) if written else around)
        self.enclosing_bytes += own_bytes + written_bytes
        for program in op.programs:
            read = program.used & (passed | sliced)
            own = {value: held(value) for value in program.inputs if value in read}
            self._program(program, own, set(own), inner_times, depth + 1)
        self.enclosing.pop()
        self.enclosing_bytes -= own_bytes + written_bytes


def _reused_operand(
    equation: Equation,
    result: Value,
    live: Mapping[Value, Held],
    mortal: set[Value],
    last: Mapping[Value, int],
    place: int,
) -> Value | None:
    """Return the operand whose buffer an elementwise result reuses."""
    if not equation.op.is_elementwise:
        return None
    reusable = (
        value
        for value in equation.inputs
        if value in live and value in mortal and last.get(value) == place and value.type.nbytes == result.type.nbytes
    )
    return next(reusable, None)


def _last_uses(program: Program, virtual: frozenset[Value]) -> dict[Value, int]:
    """Return the position of each value's last use. A use of a virtual value is a use of its operands."""
    last = dict.fromkeys(program.outputs, len(program.equations))
    for place in range(len(program.equations) - 1, -1, -1):
        equation = program.equations[place]
        read = place
        for value in equation.outputs:
            if value in virtual:
                read = max(read, last.get(value, place))
        for value in equation.inputs:
            if last.get(value, -1) < read:
                last[value] = read
        for value in equation.outputs:
            last.setdefault(value, place)  # never used
    return last
