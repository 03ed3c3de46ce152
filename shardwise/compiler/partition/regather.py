"""regather: a device that would hold too much drops gathered copies, and gathers them again where they are next needed.

LocalProgram and a limit in bytes → LocalProgram. Where more is held than the limit allows, some copies lie idle: they
were gathered for something before and wait for something after, like the weights of a layer between its forward and its
backward pass. Those go whose bytes and idle time are most for what gathering them again sends, until the rest fits;
where all of them do not suffice, the program holds more than the limit.

What is gathered again must depend on what it is needed with: XLA would find it equal to the first copy otherwise, or
make it long before it is needed. A barrier does not do, because XLA's CPU compiler drops barriers before it looks for
equal ops.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.partition.liveness import Level, peak
from shardwise.compiler.partition.local_program import LocalProgram, verify_local
from shardwise.compiler.partition.reason import Reshard
from shardwise.compiler.trace.build import rewrite

ROUNDS = 100  # each looks for what is held when that is most
AROUND = 10  # equations before a use, among which something is looked for that it can wait for


@final
@dataclass(frozen=True)
class _Copy:
    """What was gathered of `source`, and what was made of it alone by moving or converting elements.

    `equations` make all of it, the gather first. Of this, `waiting` is used later on; `next_use` is the first place.
    """

    source: Value
    equations: tuple[Equation, ...]
    waiting: frozenset[Value]
    next_use: int
    idle: int  # equations between its uses before and after
    spared: int  # bytes
    sent: float  # by gathering it again

    @property
    def worth(self) -> float:
        return self.spared * self.idle / max(1.0, self.sent)  # along an axis of one device nothing is sent


def regather_to_fit(local: LocalProgram, limit: int, donated: Collection[int] = ()) -> LocalProgram:
    """`local`, holding no more than `limit` bytes if it can. `donated` are the inputs whose memory results take."""
    if not any(isinstance(equation.op, AllGather) for equation in local.program.walk()):
        return local
    if sum(value.type.nbytes for value in _values(local.program)) <= limit:
        return local
    least, best, now = math.inf, local, local
    for _ in range(ROUNDS):
        held, levels = peak(now, donated)
        if held < least:  # what it takes to gather again can be more than was idle, until others have gone too
            least, best = held, now
        program = _spared(now, levels, held - limit) if held > limit else None
        if program is None:
            break
        now = replace(now, program=program)
    return verify_local(best)


def _values(program: Program) -> Iterable[Value]:
    yield from program.inputs
    for equation in program.equations:
        yield from equation.outputs
        for inner in equation.op.programs:
            yield from _values(inner)


def _spared(local: LocalProgram, levels: Sequence[Level], excess: int) -> Program | None:
    """The program without idle copies of so many bytes while it runs on these levels; None where none is idle."""
    idle = [
        (copy, number) for number, level in enumerate(levels) for copy in _idle_copies(local, level, may_go=number > 0)
    ]
    chosen: list[list[_Copy]] = [[] for _ in levels]
    for copy, number in sorted(idle, key=lambda item: (-item[0].worth, item[0].next_use)):
        if excess <= 0:
            break
        chosen[number].append(copy)
        excess -= copy.spared
    if not any(chosen):
        return None
    inner: Program | None = None
    for level, copies in zip(reversed(levels), reversed(chosen), strict=True):
        program = level.program
        if inner is not None:
            program = _with_inner(program, level.place, inner, levels)
        inner = _gathered_again(program, copies)
    return inner


def _with_inner(program: Program, place: int, new: Program, levels: Sequence[Level]) -> Program:
    """The program whose equation at `place` holds `new` instead of the program that was looked at."""
    equation = program.equations[place]
    assert isinstance(equation.op, Control)
    old = {id(level.program) for level in levels}
    op = equation.op.with_programs([new if id(inner) in old else inner for inner in equation.op.programs])
    equations = list(program.equations)
    equations[place] = equation.replace(op=op)
    return program.with_equations(equations)


def _idle_copies(local: LocalProgram, level: Level, may_go: bool) -> list[_Copy]:
    """What was gathered before, is not used now, and will be. `may_go`: inputs of the program can end before it."""
    program, place, live = level
    gathers: dict[Value, Equation] = {}  # of each value that is made of a gathered one alone
    made: dict[Equation, list[Equation]] = {}
    uses: dict[Value, list[int]] = {}
    for number, equation in enumerate(program.equations):
        for value in equation.inputs:
            uses.setdefault(value, []).append(number)
        if number > place or not isinstance(equation.op, (AllGather, Convert, Reshape, Transpose)):
            continue
        first = gathers.get(equation.inputs[0]) or (equation if isinstance(equation.op, AllGather) else None)
        if first is not None:
            gathers[equation.outputs[0]] = first
            made.setdefault(first, []).append(equation)
    for value in program.outputs:
        uses.setdefault(value, []).append(len(program.equations))
    end = len(program.equations)
    found = []
    for first, equations in made.items():
        values = [equation.outputs[0] for equation in equations]
        spared = sum(live[value].bytes for value in values if value in live)
        places = [number for value in values for number in uses.get(value, ())]
        own = {id(equation) for equation in equations}
        others = [n for n in places if n == end or id(program.equations[n]) not in own]
        before, after = [n for n in others if n < place], [n for n in others if n > place]
        if not spared or not before or not after or place in places or end in after:
            continue
        (source,) = first.inputs
        if max(uses[source]) <= min(after) and (may_go or source not in program.inputs):
            spared -= source.type.nbytes  # which must stay for it
        if spared > 0:
            waiting = frozenset(value for value in values if any(n > place for n in uses.get(value, ())))
            sent = local.times[first] * sum(local.bytes_sent(equation) for equation in _needed(equations, waiting))
            found.append(_Copy(source, tuple(equations), waiting, min(after), min(after) - max(before), spared, sent))
    return found


def _needed(equations: Sequence[Equation], values: Collection[Value]) -> list[Equation]:
    """Those of the equations of a copy that make these values."""
    wanted = set(values)
    kept = []
    for equation in reversed(equations):
        if equation.outputs[0] in wanted:
            wanted.update(equation.inputs)
            kept.append(equation)
    return kept[::-1]


def _gathered_again(program: Program, copies: Sequence[_Copy]) -> Program:
    """The program in which each copy ends, and is made again before its next use."""
    if not copies:
        return program
    due: dict[int, list[_Copy]] = {}
    for copy in copies:
        due.setdefault(copy.next_use, []).append(copy)
    renamed: dict[Value, Value] = {}
    equations: list[Equation] = []
    for number, equation in enumerate(program.equations):
        for copy in due.get(number, ()):
            _again(copy, equation, renamed, equations)
        inputs = [renamed.get(value, value) for value in equation.inputs]
        equations.append(equation.replace(inputs=inputs))
    outputs = tuple(renamed.get(value, value) for value in program.outputs)
    return program.with_equations(equations, outputs)


def _again(copy: _Copy, user: Equation, renamed: dict[Value, Value], equations: list[Equation]) -> None:
    """Write the equations that make a copy again, once what its next user takes beside it is there."""
    beside = [renamed.get(value, value) for value in user.inputs if value not in copy.waiting]
    made = [value for equation in reversed(equations[-AROUND:]) for value in equation.outputs]
    waited_for = next((value for value in (*beside, *made) if is_float(value.type.dtype) and value.type.size), None)
    source = renamed.get(copy.source, copy.source)
    mine = {copy.source: source if waited_for is None else _after(source, waited_for, user, equations)}
    for equation in _needed(copy.equations, copy.waiting):
        (old,) = equation.outputs
        mine[old] = Value(old.type)
        reason = equation.reason
        if isinstance(reason, Reshard):
            reason = replace(reason, regathered=True)
        equations.append(Equation(equation.op, [mine[equation.inputs[0]]], [mine[old]], equation.source, reason))
    renamed.update((value, mine[value]) for value in copy.waiting)


def _after(x: Value, other: Value, user: Equation, equations: list[Equation]) -> Value:
    """`x` itself, which XLA cannot have before it has `other`: zeros, were a number in it infinite and NaN at once."""

    def body(x: Any, other: Any) -> list[Any]:
        ones = (1,) * other.type.ndim
        number = Reshape(())(Slice((0,) * other.type.ndim, ones, ones)(other))
        infinite = Compare("EQ")(Abs()(number), full((), np.inf, number.type.dtype))
        never = And()(Compare("NE")(number, number), infinite)
        return [Select()(Broadcast(x.type.shape, ())(never), zeros_like(x), x)]

    program = rewrite("after", [x.type, other.type], body)
    mine = dict(zip(program.inputs, (x, other), strict=True))
    for equation in program.equations:
        inputs = [mine.get(value, value) for value in equation.inputs]
        equations.append(Equation(equation.op, inputs, equation.outputs, user.source))
    return program.outputs[0]
