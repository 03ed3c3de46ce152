"""schedule: when collectives run, and in how many launches. A rewrite of the program of one device.

Without it, XLA receives collectives one by one, at the op that needs them, and decides when they start. It hides a long
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
from shardwise.compiler.partition.liveness import peak, total_bytes
from shardwise.compiler.partition.local_program import LocalProgram, verify_local
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.schedule.barriers import advance_barriers
from shardwise.compiler.schedule.buckets import buckets
from shardwise.compiler.schedule.fill import fill_with_products
from shardwise.compiler.schedule.host_copies import hide_host_copies
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.order import order_by_launches
from shardwise.compiler.schedule.results import send_results_early
from shardwise.compiler.schedule.rotate import rotate
from shardwise.compiler.schedule.urgent import end_before_urgent


def schedule(
    local: LocalProgram, chip: Chip, memory_limit: int | None = None, donated: Collection[int] = ()
) -> LocalProgram:
    """Return the program with its communication scheduled.

    Args:
        local: the program of one device.
        chip: the hardware.
        memory_limit: the most bytes that each device should hold.
        donated: the inputs whose buffers are reused for outputs.
    """
    for rotates in (True, False):  # a rotated loop holds what two iterations communicate
        program = _Scheduler(local, chip, rotates).schedule_main()
        scheduled = replace(local, program=program)
        if config.verify_programs:
            verify_local(scheduled)
        if _fits(scheduled, memory_limit, donated):
            return scheduled
    return local


def _fits(local: LocalProgram, limit: int | None, donated: Collection[int]) -> bool:
    return limit is None or total_bytes(local.program) <= limit or peak(local, donated)[0] <= limit


@final
@dataclass(frozen=True)
class _Scheduler:
    """Schedules the programs of one device. `rotates`: also across iterations. `numbers` are those of launches."""

    local: LocalProgram
    chip: Chip
    rotates: bool
    numbers: Iterator[int] = field(default_factory=count)
    graphs: dict[int, KernelGraph] = field(default_factory=dict)

    def schedule_main(self) -> Program:
        """Return the main program with its communication, and its copies from and to host memory, scheduled."""
        program = self.schedule(send_results_early(self._graph(self.local.program), self.numbers))
        return hide_host_copies(self._graph(program), self.numbers)

    def schedule(self, program: Program) -> Program:
        """Return a program with the communication in it, and in the programs that it holds, scheduled."""
        program = fill_with_products(self._graph(program), self.numbers)
        program = advance_barriers(self.local, program)
        ordered = self._share_launches(program)
        return ordered.with_equations(map(self._schedule_inner, ordered.equations))

    def _schedule_inner(self, equation: Equation) -> Equation:
        rotated = rotate(self.local, equation) if self.rotates else equation
        match op := rotated.op:
            case PipelinedScan(fetch, body, finish):
                fetch, finish = (self._share_launches(part, in_own_stage=True) for part in (fetch, finish))
                return rotated.replace(op=op.with_programs((fetch, self.schedule(body), finish)))
            case Control():
                return rotated.replace(op=op.map_programs(self.schedule))
            case _:
                return rotated

    def _share_launches(self, program: Program, in_own_stage: bool = False) -> Program:
        graph = self._graph(program)
        launches = buckets(graph, in_own_stage)
        return order_by_launches(end_before_urgent(graph, launches, self.numbers), launches, self.numbers, program)

    def _graph(self, program: Program) -> KernelGraph:
        """Return the kernels of a program. A pass that changes nothing returns the program, whose graph is kept."""
        graph = self.graphs.get(id(program))  # a graph holds its program, so that ids are not reused
        if graph is None:
            graph = self.graphs[id(program)] = KernelGraph(self.local, program, self.chip)
        return graph
