"""Schedule of communication: rewrites the program of one device, so that collectives overlap with compute.

Without it, XLA receives collectives one by one, at their first consumer, and decides when they start. It hides a long
collective behind kernels, but one at a time, and of several short ones most are exposed. The README of this folder
lists the passes.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import final

from shardwise.base.config import config
from shardwise.compiler.control.pipelined_scan import PipelinedScan
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.partition.liveness import fits_in_memory
from shardwise.compiler.partition.local_program import LocalProgram, verify_local
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.streams import simulated_seconds
from shardwise.compiler.schedule.buckets import buckets
from shardwise.compiler.schedule.control_dependencies import add_control_dependencies
from shardwise.compiler.schedule.critical_path import complete_before_critical
from shardwise.compiler.schedule.delay_gathers import delay_gathers, gathers_are_crowded
from shardwise.compiler.schedule.host_copies import hide_host_copies
from shardwise.compiler.schedule.independent_products import overlap_independent_products
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.output_collectives import advance_output_collectives
from shardwise.compiler.schedule.remat_prefetch import prefetch_for_remat
from shardwise.compiler.schedule.software_pipelining import software_pipeline
from shardwise.compiler.schedule.split_collectives import split_collectives
from shardwise.compiler.schedule.topological_sort import topological_sort

# The simulator is optimistic about programs without a schedule: it starts collectives as soon as their operands are
# ready, and XLA starts them late, one at a time. A schedule may be slower by this fraction in the simulator.
_MARGIN = 0.05


def schedule(
    local: LocalProgram, chip: Chip, memory_limit: int | None = None, donated: Collection[int] = ()
) -> LocalProgram:
    """Return the program with its communication scheduled; unchanged if that is slower, or exceeds the memory limit.

    Args:
        local: the program of one device.
        chip: the hardware.
        memory_limit: the most bytes that each device should hold.
        donated: the inputs whose buffers are reused for outputs.
    """
    # A pipelined loop holds the communicated values of two iterations, and values in parts are joined in other buffers.
    variants = [(True, True), (True, False), (False, False)]
    if memory_limit is not None and not fits_in_memory(local, memory_limit, donated, chip):
        variants = variants[-1:]
    # A collective slows the kernels beside it. XLA overlaps them with or without a schedule, so that decides nothing.
    chip = replace(chip, interference=0.0)
    kept = local.rewritten(local.program)  # keeps the kernels of the programs between the passes
    graph = KernelGraph.from_program(kept, local.program, chip)
    for pipelines_loops, splits_collectives in variants:
        scheduled = kept.rewritten(_Scheduler(kept, chip, pipelines_loops, splits_collectives).schedule_main(graph))
        if config.verify_programs:
            verify_local(scheduled)
        fits = memory_limit is None or fits_in_memory(scheduled, memory_limit, donated, chip)
        if fits and not _is_slower(scheduled, graph):
            scheduled.forget_other_kernels()
            return scheduled
    return local


def _is_slower(scheduled: LocalProgram, graph: KernelGraph) -> bool:
    """Return whether a program is slower with its schedule. Without one, it takes at least the time of the kernels."""
    most = simulated_seconds(scheduled, graph.chip) / (1 + _MARGIN)
    return most > graph.seconds and most > simulated_seconds(graph.local, graph.chip)


@final
@dataclass(frozen=True)
class _Scheduler:
    """Schedules the programs of one device.

    Attributes:
        local: the program of one device.
        chip: the hardware.
        pipelines_loops: whether loops are software-pipelined.
        splits_collectives: whether long collectives are split.
        launch_ids: the ids of launches and barriers.
    """

    local: LocalProgram
    chip: Chip
    pipelines_loops: bool
    splits_collectives: bool
    launch_ids: Iterator[int] = field(default_factory=count)

    def schedule_main(self, graph: KernelGraph) -> Program:
        """Return the main program with its communication, and its copies from and to host memory, scheduled."""
        program = self._schedule(graph.rewritten(advance_output_collectives(graph, self.launch_ids)))
        return hide_host_copies(self._graph(program), self.launch_ids) if self.local.host_copies() else program

    def _schedule(self, graph: KernelGraph) -> Program:
        """Return a program with its communication, and the communication of its nested programs, scheduled."""
        if self.splits_collectives:
            graph = graph.rewritten(split_collectives(graph, self.launch_ids))
        graph = graph.rewritten(overlap_independent_products(graph, self.launch_ids))
        graph = graph.with_moved_views(prefetch_for_remat(graph))  # barriers are views
        ordered = self._share_launches(graph)
        return ordered.with_equations(map(self._schedule_nested, ordered.equations))

    def _schedule_nested(self, equation: Equation) -> Equation:
        if not equation.op.programs:
            return equation
        pipelined = software_pipeline(self.local, equation) if self.pipelines_loops else equation
        match op := pipelined.op:
            case PipelinedScan(fetch, body, finish):
                fetch, finish = (self._share_launches(self._graph(part), in_own_stage=True) for part in (fetch, finish))
                return pipelined.replace(op=op.with_programs((fetch, self._schedule(self._graph(body)), finish)))
            case Control():
                return pipelined.replace(op=op.map_programs(lambda program: self._schedule(self._graph(program))))
            case _:
                return pipelined

    def _share_launches(self, graph: KernelGraph, in_own_stage: bool = False) -> Program:
        delays = not in_own_stage and gathers_are_crowded(graph)
        launches = buckets(graph, in_own_stage, delays)
        dependencies = complete_before_critical(graph, launches)
        if delays:
            dependencies += delay_gathers(graph, launches)
        if not launches and not dependencies:
            return graph.program
        constrained = add_control_dependencies(graph.program, dependencies, self.launch_ids)
        return topological_sort(constrained, launches, self.launch_ids, graph.program)

    def _graph(self, program: Program) -> KernelGraph:
        return KernelGraph.from_program(self.local, program, self.chip)
