"""Evaluator: plan a step with given layouts of its arguments, and predict its time and memory.

The variants of a pipelined step, with other stages or microbatches, have the same equations with other sizes. The plan
of one variant is a good plan for the others (`transfer_picks`), and its predicted time there is an estimate. A variant
is planned itself only if its estimate is faster than all plans so far.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from shardwise.base.config import config
from shardwise.base.progress import set_stage
from shardwise.compiler.candidates.layout_problem import LayoutProblem, layout_problem
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.choose import choose, choose_candidates
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.plan.plan_from_picks import Picks, plan_from_picks
from shardwise.compiler.plan.transfer import transfer_picks
from shardwise.compiler.report.time_parts import time_parts
from shardwise.compiler.report.timeline import timeline
from shardwise.compiler.schedule.schedule import schedule
from shardwise.compiler.search.fit_memory import fit_any_in_memory
from shardwise.compiler.search.narrow_gathers import narrow_gathers
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import spec_of
from shardwise.layout_search.memory_bound import MemoryBound
from shardwise.layout_search.meshes import STAGE
from shardwise.layout_search.step import Step

_ESTIMATE_EFFORT = 0.3  # the effort of an estimate, relative to a plan
_MAX_EQUATIONS = 80_000  # the equations planned for all variants after which a search with an answer ends
_PROMISING = 0.99  # an estimated alternative is planned itself below this fraction of the least time so far


@final
@dataclass(frozen=True)
class Variant:
    """A way to trace a step.

    Attributes:
        remat: the values that derivatives of scans rematerialize: `none`, `all`, or `products`, which are all values
            but products with weights.
        microbatches: the number of microbatches of a pipelined step; None for other steps.
        mesh: the mesh of a pipelined step, or of ring attention; None for other steps.
        chunks: the number of stages on each device of a pipelined step that has such a parameter.
        attention: how attention over a sharded sequence runs: `ring`, or `balanced ring`, in which the work of causal
            attention is equal; empty if the planner decides.
    """

    remat: str = "none"
    microbatches: int | None = None
    mesh: AbstractMesh | None = None
    chunks: int = 1
    attention: str = ""

    @property
    def is_pipelined(self) -> bool:
        """Whether the step runs as a pipeline, perhaps of one stage."""
        return self.microbatches is not None

    @property
    def stages(self) -> int:
        """The number of devices along the pipeline axis."""
        return self.mesh.shape[STAGE] if self.is_pipelined and self.mesh is not None else 1

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings with which the step is traced."""
        return {} if self.remat == "none" else {"checkpoint_scans": self.remat}

    def with_remat(self, remat: str) -> "Variant":
        """Return the variant with this rematerialization."""
        return replace(self, remat=remat)


PLAIN = Variant()
RING, BALANCED_RING = "ring", "balanced ring"  # values of `attention`


@final
@dataclass(frozen=True)
class LayoutChange:
    """A layout that a refined alternative has instead of that of its strategy.

    Attributes:
        argument: the name of the argument, or the pattern of the names of several, in which `*` is any number.
        indices: the indices of these arguments.
        before: the layout in the strategy.
        after: the layout in the alternative.
    """

    argument: str
    indices: tuple[int, ...]
    before: Layout
    after: Layout

    def __str__(self) -> str:
        return f"{self.argument} {spec_of(self.after)} instead of {spec_of(self.before)}"


@final
@dataclass(frozen=True)
class Alternative:
    """Layouts of all arguments on a mesh, with their predicted costs.

    Attributes:
        name: the name of the strategy; with `changes`, of the strategy that was refined.
        mesh: the mesh.
        layouts: the layout of each argument.
        variant: how the step is traced: rematerialization and pipeline.
        bubble: the fraction of the time in which a device of a pipeline is idle.
        schedule: the schedule of the pipeline.
        seconds: the predicted time of a call.
        wire_bytes: the bytes that each device sends in a call.
        peak_bytes: the most bytes that a device holds at once.
        fits: whether `peak_bytes` is within the memory limit.
        is_estimated: whether the costs are from the plan of another alternative.
        parts: pairs of a cause and its seconds: products, memory traffic, idle time, and exposed collectives by kind
            and links.
        changes: the layouts that descent changed, one per class of arguments; empty for the strategy itself.
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
    schedule: str = ""
    is_estimated: bool = False
    parts: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    changes: tuple[LayoutChange, ...] = field(default=(), repr=False)

    @property
    def strategy(self) -> str:
        """The name of the strategy, and whether it was refined."""
        return f"refined {self.name}" if self.changes else self.name

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key, best first: alternatives that fit, by time; then the others, by memory.

        An estimated time is increased by the possible error of estimates, so that a plan wins a near tie.
        """
        if self.fits:
            seconds = self.seconds / _PROMISING if self.is_estimated else self.seconds
            return (0, seconds, self.wire_bytes, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds, self.wire_bytes)


@final
@dataclass
class SearchState:
    """State that the evaluators of all variants share.

    Attributes:
        tables: cost tables of the planner.
        fastest: the least time of the plans so far that fit. A slower plan is not changed to need less memory.
        reference: a planned program and its picks, from which others are estimated.
        plans: the number of plans so far, for the line of progress.
        equations: the number of equations that were planned so far, also to fit plans in memory.
    """

    tables: IdentityCache = field(default_factory=IdentityCache)
    fastest: float = math.inf
    reference: tuple[LayoutProblem, Picks] | None = None
    plans: int = 0
    equations: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether no further variants are searched, if there is a plan that fits."""
        return self.equations > _MAX_EQUATIONS and self.fastest < math.inf

    def count(self, problem: LayoutProblem) -> None:
        """Count the equations of a program that is planned."""
        self.equations += len(problem.planned)


@final
class Evaluator:
    """Evaluates layouts of one step on one chip, and counts the planned equations."""

    def __init__(
        self,
        step: Step,
        chip: Chip,
        memory_limit: int | None,
        donated: Sequence[int],
        variant: Variant = PLAIN,
        state: SearchState | None = None,
        expert_imbalance: float = 1.0,
    ):
        self.step = step
        self.chip = chip
        self.memory_limit = memory_limit
        self.donated = {n: step.next_outputs[n] for n in donated if n in step.next_outputs}
        self.planned_equations = 0.0
        self.known: dict[tuple[AbstractMesh, tuple[Layout, ...]], Alternative] = {}
        self.variant = variant
        self.state = state or SearchState()
        self.expert_imbalance = expert_imbalance
        self._memory_bound = MemoryBound.from_program(step.program, self.donated)

    def may_fit(self, devices: int) -> bool:
        """Return whether any plan on this number of devices may fit in memory."""
        return self.memory_limit is None or self.least_bytes(devices) <= self.memory_limit

    def least_bytes(self, devices: int) -> float:
        """Return a bound of the bytes per device that every plan needs."""
        return self._memory_bound.bytes_on(devices)

    @property
    def best(self) -> Alternative:
        """The best alternative so far."""
        return min(self.known.values(), key=lambda alternative: alternative.order)

    def evaluate(
        self, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...], changes: tuple[LayoutChange, ...] = ()
    ) -> Alternative:
        """Return the predicted costs of these layouts. Layouts that were evaluated before keep their first name."""
        known = self.known.get((mesh, layouts))
        if known is None:
            self.state.plans += 1
            set_stage(f"plan {self.state.plans}, {name} on mesh {mesh}")
            problem = self.layout_problem(mesh, layouts)
            known = self._estimate(problem, name, mesh, layouts)
            if known is None or known.seconds < _PROMISING * self.state.fastest:
                known = self._plan(problem, name, mesh, layouts)
            known = self.known[mesh, layouts] = replace(known, changes=changes)
        return known

    def layout_problem(self, mesh: AbstractMesh, layouts: Sequence[Layout]) -> LayoutProblem:
        """Return the program with the candidates for these layouts of arguments."""
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
        return layout_problem(
            step.program, mesh, pins, outs, step.request.out_names, [mesh], structure=step.program_structure
        )

    def _estimate(
        self, problem: LayoutProblem, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...]
    ) -> Alternative | None:
        """Return the costs of a pipelined step with the plan of another variant; None if there is none."""
        reference = self.state.reference
        if reference is None or not self.variant.is_pipelined:
            return None
        picks = transfer_picks(reference[1], reference[0], problem)
        if picks is None:
            return None
        self.planned_equations += _ESTIMATE_EFFORT * len(problem.planned)
        local = partition(problem, plan_from_picks(problem, picks, self.chip), is_estimate=True)
        return self._alternative(local, name, mesh, layouts, is_estimated=True)

    def _plan(self, problem: LayoutProblem, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...]) -> Alternative:
        """Return the costs of a program with its cheapest plan."""
        state, limit = self.state, self.memory_limit
        self.planned_equations += len(problem.planned)
        state.count(problem)
        if not self.variant.is_pipelined:
            plan = choose(problem, self.chip, state.tables)
        else:
            picks = choose_candidates(problem, Costs(self.chip, problem.mesh), cache=state.tables)
            plan = plan_from_picks(problem, picks, self.chip)
        first = PartitionedProgram(problem, plan, partition(problem, plan))
        program = narrow_gathers(first, state.tables)
        result = self._alternative(program.local, name, mesh, layouts)
        local = program.local
        if limit is not None and self._may_be_changed_to_fit(result, limit):
            forms = [first] if program is first else [program, first]
            local = fit_any_in_memory(forms, limit, list(self.donated), state.tables, state.count).local
        if self.chip.overlaps and config.schedule_communication and local.collectives():
            local = schedule(local, self.chip, limit, list(self.donated))
        if local is not program.local:
            result = self._alternative(local, name, mesh, layouts)
        if result.fits and result.seconds < state.fastest:
            state.fastest = result.seconds
            state.reference = (problem, picks) if self.variant.is_pipelined else None
        return result

    def _may_be_changed_to_fit(self, result: Alternative, limit: int) -> bool:
        """Return whether to change a plan that exceeds the limit: another may fit, and this would be the fastest."""
        if result.peak_bytes <= limit or result.seconds >= self.state.fastest:
            return False
        return self._memory_bound.bytes_with(result.mesh, result.layouts) <= limit

    def _alternative(
        self,
        local: LocalProgram,
        name: str,
        mesh: AbstractMesh,
        layouts: tuple[Layout, ...],
        is_estimated: bool = False,
    ) -> Alternative:
        """Return the predicted costs of the program of one device."""
        local = local.with_expert_imbalance(self.expert_imbalance)
        times = timeline(local, self.chip, donated=self.donated, lists_alive=False)
        fits = self.memory_limit is None or times.peak_bytes <= self.memory_limit
        bubble = sum(row.idle_seconds for row in times.idle) / times.seconds if times.idle else 0.0
        schedule = ", ".join(dict.fromkeys(row.what.removesuffix(" pipeline") for row in times.idle))
        return Alternative(
            name,
            mesh,
            layouts,
            times.seconds,
            local.sent,
            times.peak_bytes,
            fits,
            self.variant,
            bubble,
            schedule,
            is_estimated,
            tuple(time_parts(times, self.chip, local.mesh).items()),
        )
