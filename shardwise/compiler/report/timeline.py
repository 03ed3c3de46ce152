"""timeline: the steps of one device in a call, in program order, with start, estimated time and live bytes.

Ops run one after the other: nothing overlaps. An op in a loop's body is one step that takes as long as all its
iterations together. A loop of unknown length counts as one iteration; of a branch, all sides are counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import NOWHERE, Equation, Source, Value
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.partition.liveness import Held, Sweep
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reshard import collective_axes
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.report.idle import IdleRow, idle_of, idle_rows


@final
@dataclass(frozen=True)
class Step:
    """One op in time.

    Attributes:
        op: the name of the op.
        source: the user's line.
        start: seconds from the start of the call.
        seconds: the time that all `times` runs take together.
        held: live bytes on the device while it runs.
        sent: bytes that the device sends, all runs together.
        times: how often it runs in one call.
        depth: the number of loops and branches around it.
        idle: the part of `seconds` in which the device has no work of its own, such as a pipeline's bubble.
    """

    op: str
    source: Source
    start: float
    seconds: float
    held: int
    sent: float = 0.0
    times: int = 1
    depth: int = 0
    idle: float = 0.0


@final
@dataclass(frozen=True)
class Timeline:
    """The steps of a call. `alive` are the values that live during step `peak`, largest first; without steps, the
    arguments. `idle` has a row for each schedule in which devices are idle, such as a pipeline."""

    steps: tuple[Step, ...]
    peak: int
    peak_bytes: int
    alive: tuple[Held, ...]
    idle: tuple[IdleRow, ...] = ()


def timeline(
    local: LocalProgram, chip: Chip, names: Sequence[str] = (), donated: Mapping[int, int] | None = None
) -> Timeline:
    """Return the steps of a program on a chip.

    Args:
        local: the program of one device.
        chip: the hardware whose cost model is used.
        names: the names of the inputs.
        donated: for each donated input, the output that reuses its buffer.
    """
    inputs = {
        value: Held(
            names[number] if number < len(names) else f"input {number}", str(value.type), value.type.nbytes, NOWHERE
        )
        for number, value in enumerate(local.program.inputs)
    }
    sweep = _TimedSweep(local, inputs, donated or {}, chip)
    alive = [held for level in sweep.at_peak() for held in level.live.values()]
    alive.sort(key=lambda held: -held.bytes)
    idle = idle_rows((step.source, step.seconds) for step in sweep.steps)
    return Timeline(tuple(sweep.steps), sweep.peak, sweep.peak_bytes, tuple(alive), idle)


@final
class _TimedSweep(Sweep):
    """A liveness sweep that records a step for each equation. `peak` is the number of the step at the memory peak."""

    def __init__(self, local: LocalProgram, inputs: Mapping[Value, Held], donated: Mapping[int, int], chip: Chip):
        self.chip = chip
        self.steps: list[Step] = []
        self.now = 0.0
        self.peak = 0
        super().__init__(local, inputs, donated)

    def on_new_peak(self) -> None:
        self.peak = max(0, len(self.steps) - 1)

    def on_equation(self, equation: Equation, fused: set[Value], live_bytes: int, times: int, depth: int) -> None:
        sent = self.local.bytes_sent(equation)
        if sent:
            assert isinstance(equation.op, Collective)
            seconds = self.chip.collective_time(equation.op.name, sent, self.local.mesh, collective_axes(equation.op))
        else:
            accessed = [value for value in (*equation.inputs, *equation.outputs) if value not in fused]
            if equation.outputs and not accessed:
                return  # fused into its consumer
            dtype = accessed[0].type.dtype if accessed else np.dtype(np.float32)
            seconds = self.chip.compute_time(flops(equation), sum(value.type.nbytes for value in accessed), dtype)
        seconds *= times
        row = idle_of(equation.source)
        idle = row.share * seconds if row else 0.0
        step = Step(equation.op.name, equation.source, self.now, seconds, live_bytes, sent * times, times, depth, idle)
        self.steps.append(step)
        self.now += step.seconds


def flops(equation: Equation) -> float:
    """Return the flops of a product; the time of other ops is determined by the bytes that they access."""
    if not equation.op.is_contraction:
        return 0.0
    return 2.0 * math.prod(factor_rule(equation.op, tuple(value.type for value in equation.inputs)).sizes)
