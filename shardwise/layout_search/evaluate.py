"""Evaluator: plan a step with given layouts of its arguments, and predict its time and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from shardwise.compiler.partition.fit_memory import PartitionedProgram, fit_memory
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.propagate.propagate import ShardedProgram, propagate
from shardwise.compiler.report.timeline import timeline
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.meshes import STAGE
from shardwise.layout_search.step import Step

_HOPELESS = 4  # a plan that needs this many times the memory limit is not changed to need less


@final
@dataclass(frozen=True)
class Variant:
    """How a step is traced.

    Attributes:
        remat: the values that derivatives of scans recompute: `none`, `all`, or `products`: all but products with
            weights.
        microbatches: the number of microbatches of a pipelined step; None for other steps.
        mesh: the mesh of a pipelined step; None for other steps.
    """

    remat: str = "none"
    microbatches: int | None = None
    mesh: AbstractMesh | None = None

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return 1 if self.mesh is None else self.mesh.shape[STAGE]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings with which the step is traced."""
        return {} if self.remat == "none" else {"checkpoint_scans": self.remat}

    def with_remat(self, remat: str) -> "Variant":
        """Return the variant that recomputes these values."""
        return replace(self, remat=remat)


PLAIN = Variant()


@final
@dataclass(frozen=True)
class Alternative:
    """Layouts of all arguments on a mesh, and what they are predicted to cost.

    Attributes:
        name: the strategy, in words.
        mesh: the mesh.
        layouts: the layout of each argument.
        variant: how the step is traced: recomputation and pipeline.
        bubble: the share of the time in which a device of a pipeline is idle.
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
    variant: Variant = PLAIN
    bubble: float = 0.0

    @property
    def order(self) -> tuple[float, ...]:
        """Better alternatives come first: those that fit, by time; then the others, by memory."""
        if self.fits:
            return (0, self.seconds, self.wire_bytes, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds, self.wire_bytes)


@final
class Evaluator:
    """Evaluates layouts of one step on one chip. It counts the equations that it has planned."""

    def __init__(
        self,
        step: Step,
        chip: Chip,
        memory_limit: int | None,
        donated: Sequence[int],
        variant: Variant = PLAIN,
        tables: IdentityCache | None = None,
    ):
        self.step = step
        self.chip = chip
        self.memory_limit = memory_limit
        self.donated = {n: step.next_outputs[n] for n in donated if n in step.next_outputs}
        self.planned_equations = 0
        self.known: dict[tuple[AbstractMesh, tuple[Layout, ...]], Alternative] = {}
        self.variant = variant
        self.tables = tables or IdentityCache()  # cost tables of the planner, which all plans share

    @property
    def best(self) -> Alternative:
        """The best alternative so far."""
        return min(self.known.values(), key=lambda alternative: alternative.order)

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

    def _fastest(self) -> float:
        """Return the least time of the alternatives so far that fit. A slower plan is not changed to need less."""
        return min((known.seconds for known in self.known.values() if known.fits), default=float("inf"))

    def _evaluate(self, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...]) -> Alternative:
        sharded = self.propagate(mesh, layouts)
        self.planned_equations += len(sharded.planned)
        plan = choose(sharded, self.chip, self.tables)
        local = partition(sharded, plan)
        times = timeline(local, self.chip, donated=self.donated)
        limit = self.memory_limit
        if limit is not None and limit < times.peak_bytes < _HOPELESS * limit and times.seconds < self._fastest():
            local = fit_memory(PartitionedProgram(sharded, plan, local), limit, list(self.donated)).local
            times = timeline(local, self.chip, donated=self.donated)
        fits = limit is None or times.peak_bytes <= limit
        bubble = sum(row.idle_seconds for row in times.idle) / times.seconds if times.idle else 0.0
        return Alternative(name, mesh, layouts, times.seconds, local.sent, times.peak_bytes, fits, self.variant, bubble)
