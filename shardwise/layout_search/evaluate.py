"""Evaluator: plan a step with given layouts of its arguments, and predict its time and memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.partition.fit_memory import PartitionedProgram, fit_memory
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.propagate.propagate import ShardedProgram, propagate
from shardwise.compiler.report.timeline import timeline
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.step import Step

_HOPELESS = 4  # a plan that needs this many times the memory limit is not changed to need less


@final
@dataclass(frozen=True)
class Alternative:
    """Layouts of all arguments on a mesh, and what they are predicted to cost.

    Attributes:
        name: the strategy, in words.
        mesh: the mesh.
        layouts: the layout of each argument.
        seconds: the predicted time of a call.
        wire_bytes: the bytes that each device sends in a call.
        peak_bytes: the most bytes that a device holds at once.
        fits: whether that is within the memory limit.
    """

    name: str
    mesh: AbstractMesh
    layouts: tuple[Layout, ...] = field(repr=False)
    seconds: float
    wire_bytes: float
    peak_bytes: int
    fits: bool

    @property
    def order(self) -> tuple[float, ...]:
        """Better alternatives come first: those that fit, by time; then the others, by memory."""
        if self.fits:
            return (0, self.seconds, self.wire_bytes, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds, self.wire_bytes)


@final
class Evaluator:
    """Evaluates layouts of one step on one chip. It counts the equations that it has planned."""

    def __init__(self, step: Step, chip: Chip, memory_limit: int | None, donated: Sequence[int]):
        self.step = step
        self.chip = chip
        self.memory_limit = memory_limit
        self.donated = {n: step.next_outputs[n] for n in donated if n in step.next_outputs}
        self.planned_equations = 0
        self.known: dict[tuple[AbstractMesh, tuple[Layout, ...]], Alternative] = {}

    def evaluate(self, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...]) -> Alternative:
        """Return the predicted costs of these layouts; layouts that were evaluated before keep their first name."""
        known = self.known.get((mesh, layouts))
        if known is None:
            known = self.known[mesh, layouts] = self._evaluate(name, mesh, layouts)
        return known

    def propagate(self, mesh: AbstractMesh, layouts: Sequence[Layout]) -> ShardedProgram:
        """Return the program with the candidates that these layouts of arguments allow."""
        step = self.step
        fixed = len(step.request.names)  # the inputs after the arguments are captured arrays
        pins = [
            Pin(layout, frozenset() if number < fixed else frozenset(range(len(layout.dims))), reason=name)
            for number, (layout, name) in enumerate(
                zip(layouts, [*step.request.names, *["a captured array"] * len(layouts)], strict=False)
            )
        ]
        outs: list[Pin | None] = [None] * len(step.program.outputs)
        for number, output in step.next_outputs.items():
            outs[output] = Pin(layouts[number], reason=step.request.output_name(output))
        return propagate(step.program, mesh, pins, outs, step.request.out_names, [mesh])

    def _evaluate(self, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...]) -> Alternative:
        sharded = self.propagate(mesh, layouts)
        self.planned_equations += len(sharded.planned)
        plan = choose(sharded, self.chip)
        local = partition(sharded, plan)
        times = timeline(local, self.chip, donated=self.donated)
        limit = self.memory_limit
        if limit is not None and limit < times.peak_bytes < _HOPELESS * limit:
            local = fit_memory(PartitionedProgram(sharded, plan, local), limit, list(self.donated)).local
            times = timeline(local, self.chip, donated=self.donated)
        fits = limit is None or times.peak_bytes <= limit
        return Alternative(name, mesh, layouts, times.seconds, local.sent, times.peak_bytes, fits)
