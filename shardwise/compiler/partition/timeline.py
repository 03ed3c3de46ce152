"""timeline: what one device does in a call, in order: when and for how long by the cost model, and what it holds.

Ops run one after the other: nothing overlaps. An op of a loop's body stands once, as long as all its turns together; a
loop whose length is not known is counted as one turn, and of a branch all sides are counted.

Memory is a sweep over the program in its order. Arguments stay to the end, unless their memory is given to a result:
then they go when they are last used. Some values are never written, because XLA makes them where they are read: what is
computed from constants alone, reshapes and barriers, and values of elementwise ops whose only use is another
elementwise op or a reduction. An elementwise result takes the memory of an operand that is not used any more.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.ops.collective import Collective
from shardwise.compiler.ops.control import Control
from shardwise.compiler.ops.elementwise import Elementwise
from shardwise.compiler.ops.reduce import Reduction
from shardwise.compiler.ops.remat import Barrier
from shardwise.compiler.ops.shape import Broadcast, Reshape, Transpose
from shardwise.compiler.partition.local import LocalProgram
from shardwise.compiler.partition.reshard import axes_of
from shardwise.compiler.plan.hardware import Chip


@final
@dataclass(frozen=True)
class Step:
    """One op: from `start` on it takes `seconds`, all `times` that it runs; the device holds `held` bytes meanwhile.

    `sent` is what it sends, in bytes, all times; `depth` the number of loops and branches around it.
    """

    op: str
    source: Source
    start: float
    seconds: float
    held: int
    sent: float = 0.0
    times: int = 1
    depth: int = 0


@final
@dataclass(frozen=True)
class Held:
    """A value that is in memory: what made it, its piece's type, and the user's line."""

    what: str
    type: str
    bytes: int
    source: Source


@final
@dataclass(frozen=True)
class Timeline:
    """`alive` is what is held while step `peak` runs, the largest first. Without steps, it is the arguments."""

    steps: tuple[Step, ...]
    peak: int
    peak_bytes: int
    alive: tuple[Held, ...]


def timeline(
    local: LocalProgram, chip: Chip, names: Sequence[str] = (), given_up: Mapping[int, int] | None = None
) -> Timeline:
    """The steps of a program on this chip. `names` are its inputs'; `given_up` the inputs that give outputs their
    memory."""
    inputs = {
        value: Held(
            names[number] if number < len(names) else f"input {number}", str(value.type), value.type.nbytes, NOWHERE
        )
        for number, value in enumerate(local.program.inputs)
    }
    sweep = _Sweep(local, inputs, given_up or {}, chip)
    alive = [held for level in sweep.at_peak() for held in level.live.values()]
    alive.sort(key=lambda held: -held.bytes)
    return Timeline(tuple(sweep.steps), sweep.peak, sweep.peak_bytes, tuple(alive))


class Level(NamedTuple):
    """A program, the place of the equation in it that runs, and what it holds itself meanwhile."""

    program: Program
    place: int
    live: Mapping[Value, Held]


def peak(local: LocalProgram, given_up: Collection[int] = ()) -> tuple[int, list[Level]]:
    """The most bytes that a device holds; and when: the program, then the loop or branch that runs in it, and so on."""
    inputs = {value: Held("input", "", value.type.nbytes, NOWHERE) for value in local.program.inputs}
    sweep = _Sweep(local, inputs, given_up)
    return sweep.peak_bytes, sweep.at_peak()


@final
class _Sweep:
    """Without a chip, only memory is looked at. `until` is the visit, of all to equations, after which to stop."""

    def __init__(
        self,
        local: LocalProgram,
        inputs: Mapping[Value, Held],
        given_up: Collection[int],
        chip: Chip | None = None,
        until: int = -1,
    ):
        self.local = local
        self.inputs = inputs
        self.given_up = given_up
        self.chip = chip
        self.until = until
        self.steps: list[Step] = []
        self.now = 0.0
        self.outside: list[Level] = []  # the programs around the one that is swept
        self.outside_bytes = 0
        self.peak = self.visit = self.peak_visit = 0
        self.peak_bytes = sum(held.bytes for held in inputs.values())
        self.found: list[Level] = [Level(local.program, 0, inputs)]
        mortal = {local.program.inputs[number] for number in given_up}
        self.run(local.program, dict(inputs), mortal, 1, 0)

    def at_peak(self) -> list[Level]:
        """What is held when it is most: found by sweeping up to there once more."""
        return _Sweep(self.local, self.inputs, self.given_up, until=self.peak_visit).found

    def run(self, program: Program, live: dict[Value, Held], mortal: set[Value], times: int, depth: int) -> None:
        """Sweep over a program. `live` are the inputs that it holds itself, of which `mortal` may go."""
        inlined, views = _unwritten(program)
        unwritten = inlined | views
        last = _last_uses(program, unwritten)
        going: dict[int, list[Value]] = {}
        for value, place in last.items():
            going.setdefault(place, []).append(value)
        own = sum(held.bytes for held in live.values())
        for place, equation in enumerate(program.equations):
            written = [value for value in equation.outputs if value not in unwritten]
            for value in written:
                reused = self._taken_over(equation, value, live, mortal, last, place)
                if reused is not None:
                    own -= live.pop(reused).bytes
                live[value] = Held(equation.op.name, str(value.type), value.type.nbytes, equation.source)
                own += value.type.nbytes
                mortal.add(value)
            if isinstance(equation.op, Control):
                self._inner(equation, equation.op, Level(program, place, live), own, times, depth)
            else:
                if self.chip is not None and views.isdisjoint(equation.outputs):
                    self._step(equation, self.chip, inlined, own, times, depth)
                self._note(Level(program, place, live), own)
            if 0 <= self.until <= self.visit:
                return
            for value in going.get(place, ()):
                if value in live and value in mortal:
                    own -= live.pop(value).bytes

    def _note(self, now: Level, own: int) -> None:
        """One more visit: perhaps this is the most so far, or what is looked for."""
        self.visit += 1
        if self.outside_bytes + own > self.peak_bytes:
            self.peak_bytes = self.outside_bytes + own
            self.peak = max(0, len(self.steps) - 1)
            self.peak_visit = self.visit
        if self.visit == self.until:
            self.found = [*self.outside, now]

    def _taken_over(
        self,
        equation: Equation,
        result: Value,
        live: Mapping[Value, Held],
        mortal: set[Value],
        last: Mapping[Value, int],
        place: int,
    ) -> Value | None:
        """The operand whose memory an elementwise result takes."""
        if not isinstance(equation.op, Elementwise):
            return None
        fits = (
            value
            for value in equation.inputs
            if value in live
            and value in mortal
            and last.get(value) == place
            and value.type.nbytes == result.type.nbytes
        )
        return next(fits, None)

    def _inner(self, equation: Equation, op: Control, around: Level, own: int, times: int, depth: int) -> None:
        """The programs that an op holds. What they take whole or carry lies outside; slices are theirs."""
        often = times * (1 if op.times is None else op.times)
        self.outside.append(around)
        self.outside_bytes += own
        for number, program in enumerate(op.programs):
            slices = {
                program.inputs[end.number]
                for crossing in op.crossings
                if crossing.tie.leading
                for end in crossing.gives
                if end.kind == "entry" and end.program == number
            }
            taken = {
                value: Held(f"a slice for {op.name}", str(value.type), value.type.nbytes, equation.source)
                for value in program.inputs
                if value in slices
            }
            self.run(program, taken, set(slices), often, depth + 1)
        self.outside.pop()
        self.outside_bytes -= own

    def _step(self, equation: Equation, chip: Chip, inlined: set[Value], own: int, times: int, depth: int) -> None:
        sent = self.local.wire(equation)
        if sent:
            assert isinstance(equation.op, Collective)
            axes = axes_of(equation.op)
            seconds = chip.collective_time(equation.op.name, sent, self.local.mesh, axes)
        else:
            moved = [value for value in (*equation.inputs, *equation.outputs) if value not in inlined]
            if equation.outputs and not moved:
                return  # part of what reads it
            touched = sum(value.type.nbytes for value in moved)
            kind = moved[0].type.dtype if moved else np.dtype(np.float32)
            seconds = chip.compute_time(flops(equation), touched, kind)
        held = self.outside_bytes + own
        row = Step(equation.op.name, equation.source, self.now, seconds * times, held, sent * times, times, depth)
        self.steps.append(row)
        self.now += row.seconds


def flops(equation: Equation) -> float:
    """Of a product; other ops are counted by the bytes that they move."""
    if not equation.op.multiplies:
        return 0.0
    return 2.0 * math.prod(factor_rule(equation.op, tuple(value.type for value in equation.inputs)).sizes)


def _unwritten(program: Program) -> tuple[set[Value], set[Value]]:
    """Values that are made where they are read; and views, which are other values in another shape."""
    uses: dict[Value, list[Equation]] = {}
    for equation in program.equations:
        for value in equation.inputs:
            uses.setdefault(value, []).append(equation)
    inlined: set[Value] = set()
    views: set[Value] = set()
    constant: set[Value] = set()
    kept = set(program.outputs)
    for equation in program.equations:
        op = equation.op
        if len(equation.outputs) != 1 or equation.outputs[0] in kept:
            continue
        (value,) = equation.outputs
        if op.cheap and constant.issuperset(equation.inputs):
            constant.add(value)
            inlined.add(value)
        elif isinstance(op, (Reshape, Barrier)):
            views.add(value)
        elif isinstance(op, (Elementwise, Broadcast, Transpose)):
            readers = uses.get(value, [])
            if len(readers) == 1 and isinstance(readers[0].op, (Elementwise, Broadcast, Reduction)):
                inlined.add(value)
    return inlined, views


def _last_uses(program: Program, unwritten: set[Value]) -> dict[Value, int]:
    """The place of the equation that reads each value last; what makes an unwritten value is read where that is."""
    last = dict.fromkeys(program.outputs, len(program.equations))
    for place in range(len(program.equations) - 1, -1, -1):
        equation = program.equations[place]
        read = max((last.get(value, place) for value in equation.outputs if value in unwritten), default=place)
        for value in equation.inputs:
            last[value] = max(last.get(value, -1), read)
        for value in equation.outputs:
            last.setdefault(value, place)  # nobody reads it
    return last
