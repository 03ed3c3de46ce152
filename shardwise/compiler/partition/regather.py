"""regather: drop all-gathered copies and gather them again at their next use, to stay within a memory limit.

At the memory peak, some gathered copies are idle: they are used before and after it, but not at it, such as the weights
of a layer between its forward and backward pass. The pass drops idle copies until the rest fits. It prefers copies with
a high ratio of bytes times idle time to the bytes that gathering them again sends. If dropping all idle copies does not
suffice, the program exceeds the limit.

A second gather must depend on a value that is computed shortly before its use. Otherwise XLA would merge it with the
first one (CSE), or schedule it long before. An optimization barrier does not help, because XLA's CPU compiler drops
barriers before CSE.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.partition.liveness import Level, peak, total_bytes
from shardwise.compiler.partition.local_program import LocalProgram, verify_local
from shardwise.compiler.partition.reason import Reshard
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.trace.build import rewrite

MAX_ROUNDS = 100  # each round drops idle copies at the memory peak
LOOK_BACK = 10  # how many equations before a use are searched for a value to depend on


@final
@dataclass(frozen=True)
class _IdleCopy:
    """A gathered copy that is used before and after the memory peak, but not at it.

    Attributes:
        source: the value that is gathered.
        equations: the gather, and the conversions, reshapes and transposes that depend on its result alone.
        needed: the results of these equations that are used after the peak.
        next_use: the position of the first such use.
        idle: the number of equations between the last use before and the first use after the peak.
        saved_bytes: the bytes that dropping the copy, and its own copies for libraries, frees at the peak.
        sent: the bytes that gathering it again sends.
    """

    source: Value
    equations: tuple[Equation, ...]
    needed: frozenset[Value]
    next_use: int
    idle: int
    saved_bytes: int
    sent: float

    @property
    def benefit(self) -> float:
        """The benefit of dropping the copy relative to its cost."""
        return self.saved_bytes * self.idle / max(1.0, self.sent)  # along an axis of one device nothing is sent


def regather_to_fit(
    local: LocalProgram, limit: int, donated: Collection[int] = (), chip: Chip | None = None
) -> LocalProgram:
    """Return the program with gathers repeated so that each device holds at most `limit` bytes, if that is possible.

    Args:
        local: the program of one device.
        limit: the most bytes that each device should hold.
        donated: the inputs whose buffers are reused for outputs.
        chip: the hardware, whose libraries need workspaces; None for none.
    """
    if not any(isinstance(equation.op, AllGather) for equation in local.program.walk()):
        return local
    if total_bytes(local.program, chip) <= limit:  # an upper bound of the peak that needs no liveness analysis
        return local
    best_bytes, best, current = math.inf, local, local
    for _ in range(MAX_ROUNDS):
        peak_bytes, levels = peak(current, donated, chip)
        if peak_bytes < best_bytes:  # a round may raise the peak, at the second gather
            best_bytes, best = peak_bytes, current
        program = _drop_idle_copies(current, levels, peak_bytes - limit) if peak_bytes > limit else None
        if program is None:
            break
        current = replace(current, program=program)
    return verify_local(best)


def _drop_idle_copies(local: LocalProgram, levels: Sequence[Level], excess: int) -> Program | None:
    """Return the program with idle copies dropped at the peak, until `excess` bytes are freed; None if none is idle.

    Args:
        local: the program of one device.
        levels: the program and the nested programs that run at the peak.
        excess: the bytes to free.
    """
    idle = [
        (copy, number)
        for number, level in enumerate(levels)
        for copy in _idle_copies(local, level, inputs_may_die=number > 0)
    ]
    chosen: list[list[_IdleCopy]] = [[] for _ in levels]
    for copy, number in sorted(idle, key=lambda item: (-item[0].benefit, item[0].next_use)):
        if excess <= 0:
            break
        chosen[number].append(copy)
        excess -= copy.saved_bytes
    if not any(chosen):
        return None
    inner: Program | None = None
    for level, copies in zip(reversed(levels), reversed(chosen), strict=True):
        program = level.program
        if inner is not None:
            program = _replace_inner(program, level.place, inner, levels)
        inner = _repeat_gathers(program, copies)
    return inner


def _replace_inner(program: Program, place: int, new: Program, levels: Sequence[Level]) -> Program:
    """Return the program with the nested program of the equation at `place` replaced by `new`, if `levels` has it."""
    equation = program.equations[place]
    old = {id(level.program) for level in levels}
    op = equation.op.with_programs([new if id(inner) in old else inner for inner in equation.op.programs])
    equations = list(program.equations)
    equations[place] = equation.replace(op=op)
    return program.with_equations(equations)


def _idle_copies(local: LocalProgram, level: Level, inputs_may_die: bool) -> list[_IdleCopy]:
    """Return the gathered copies that are idle at the memory peak of this program.

    Args:
        local: the program of one device.
        level: a program that runs at the peak, and its live values.
        inputs_may_die: whether inputs of the program can be freed before its end.
    """
    program, place, live, copied = level
    gathers: dict[Value, Equation] = {}  # value that depends on one gather alone → that gather
    derived: dict[Equation, list[Equation]] = {}
    uses: dict[Value, list[int]] = {}
    for number, equation in enumerate(program.equations):
        for value in equation.inputs:
            uses.setdefault(value, []).append(number)
        # A copy may be converted after the peak. The conversion's results are not live at the peak, so they stay as
        # they are.
        if number > place or not isinstance(equation.op, (AllGather, Convert, Reshape, Transpose)):
            continue
        first = gathers.get(equation.inputs[0]) or (equation if isinstance(equation.op, AllGather) else None)
        if first is not None:
            gathers[equation.outputs[0]] = first
            derived.setdefault(first, []).append(equation)
    for value in program.outputs:
        uses.setdefault(value, []).append(len(program.equations))
    end = len(program.equations)
    copies = []
    for first, equations in derived.items():
        values = [equation.outputs[0] for equation in equations]
        saved_bytes = sum(live[value].bytes for value in values if value in live)
        saved_bytes += sum(copied.get(value, 0) for value in values)
        places = [number for value in values for number in uses.get(value, ())]
        own = {id(equation) for equation in equations}
        others = [n for n in places if n == end or id(program.equations[n]) not in own]
        before, after = [n for n in others if n < place], [n for n in others if n > place]
        if not saved_bytes or not before or not after or place in places or end in after:
            continue
        (source,) = first.inputs
        if max(uses[source]) <= min(after) and (inputs_may_die or source not in program.inputs):
            # The source must live until the second gather. Arguments of the call live to its end in any case.
            saved_bytes -= source.type.nbytes
        if saved_bytes > 0:
            needed = frozenset(value for value in values if any(n > place for n in uses.get(value, ())))
            sent = local.times[first] * sum(
                local.bytes_sent(equation) for equation in _equations_for(equations, needed)
            )
            idle = min(after) - max(before)
            copies.append(_IdleCopy(source, tuple(equations), needed, min(after), idle, saved_bytes, sent))
    return copies


def _equations_for(equations: Sequence[Equation], values: Collection[Value]) -> list[Equation]:
    """Return the equations that `values` depend on."""
    needed = set(values)
    kept = []
    for equation in reversed(equations):
        if equation.outputs[0] in needed:
            needed.update(equation.inputs)
            kept.append(equation)
    return kept[::-1]


def _repeat_gathers(program: Program, copies: Sequence[_IdleCopy]) -> Program:
    """Return the program in which each copy is gathered again before its next use."""
    if not copies:
        return program
    due: dict[int, list[_IdleCopy]] = {}
    for copy in copies:
        due.setdefault(copy.next_use, []).append(copy)
    renamed: dict[Value, Value] = {}
    equations: list[Equation] = []
    for index, equation in enumerate(program.equations):
        for copy in due.get(index, ()):
            _repeat_gather(copy, equation, renamed, equations)
        inputs = [renamed.get(value, value) for value in equation.inputs]
        equations.append(equation.replace(inputs=inputs))
    outputs = tuple(renamed.get(value, value) for value in program.outputs)
    return program.with_equations(equations, outputs)


def _repeat_gather(copy: _IdleCopy, consumer: Equation, renamed: dict[Value, Value], equations: list[Equation]) -> None:
    """Append the equations that gather a copy again, with a dependency on another operand of its next consumer.

    Args:
        copy: the copy.
        consumer: the equation at its next use.
        renamed: the replacement of each value from here on; updated in place.
        equations: the equations of the new program so far; appended to.
    """
    other_operands = [renamed.get(value, value) for value in consumer.inputs if value not in copy.needed]
    recent = [value for equation in reversed(equations[-LOOK_BACK:]) for value in equation.outputs]
    # The best dependency is another operand of the consumer: the gather then cannot start much earlier than the
    # consumer. The operand must be a float, because the condition that XLA cannot fold tests for NaN and infinity.
    dependencies = (v for v in (*other_operands, *recent) if is_float(v.type.dtype) and v.type.size)
    dependency = next(dependencies, None)
    source = renamed.get(copy.source, copy.source)
    if dependency is not None:
        source = _add_false_dependency(source, dependency, consumer, equations)
    repeated = {copy.source: source}
    for equation in _equations_for(copy.equations, copy.needed):
        (old,) = equation.outputs
        repeated[old] = Value(old.type)
        reason = equation.reason
        if isinstance(reason, Reshard):
            reason = replace(reason, regathered=True)
        equations.append(
            Equation(equation.op, [repeated[equation.inputs[0]]], [repeated[old]], equation.source, reason)
        )
    renamed.update((value, repeated[value]) for value in copy.needed)


def _add_false_dependency(x: Value, other: Value, consumer: Equation, equations: list[Equation]) -> Value:
    """Append equations that return `x`, with a false dependency on `other` that XLA cannot fold away.

    The result would be zeros if an element of `other` were both infinite and NaN, which XLA does not rule out.
    """

    def body(x: Operand, other: Operand) -> list[Any]:
        ones = (1,) * other.type.ndim  # depending on one element is depending on the array
        element = Reshape(())(Slice((0,) * other.type.ndim, ones, ones)(other))
        infinite = Compare("EQ")(Abs()(element), full((), np.inf, element.type.dtype))
        never = And()(Compare("NE")(element, element), infinite)
        return [Select()(Broadcast(x.type.shape, ())(never), zeros_like(x), x)]

    program = rewrite("false_dependency", [x.type, other.type], body)
    operands = dict(zip(program.inputs, (x, other), strict=True))
    for equation in program.equations:
        inputs = [operands.get(value, value) for value in equation.inputs]
        equations.append(Equation(equation.op, inputs, equation.outputs, consumer.source))
    return program.outputs[0]
