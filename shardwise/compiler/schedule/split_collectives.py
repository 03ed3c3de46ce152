"""Split collectives: compute the kernels around long collectives on the critical path in parts.

A tensor-parallel layer reduces its activations, and the next product needs the result at once: no kernel is left that
could hide the reduction. But the rows of a batch do not depend on each other. If the layer is computed in two parts,
the second part is computed while the first one is reduced. The same bytes are sent, in more launches, and each kernel
is launched once per part.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import final

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.report.streams import simulated_seconds
from shardwise.compiler.schedule.emit_parts import emit_parts, split_stages
from shardwise.compiler.schedule.independent_products import overlap_independent_products
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.part_equations import part_type
from shardwise.compiler.schedule.split_region import RegionFinder, SplitRegion

# The numbers of parts, each with the fraction of the time around a region that it must save against fewer parts. XLA
# orders many short collectives worse than the simulator does.
_MIN_GAIN = {2: 0.01, 4: 0.1}
_PARTS = tuple(_MIN_GAIN)
_MAX_SLOWDOWN = 1.1  # the parts of a collective take at most this many times as long as the whole
_MIN_EXTENT = 0.1  # products, and critical collectives, take at least this fraction of the time in which a region runs
_MIN_SHARE = 0.001  # the fraction of the program's compute that splitting a region must save


def split_collectives(graph: KernelGraph, launch_ids: Iterator[int]) -> Program:
    """Return the program with critical collectives, and the kernels around them, in parts where that is faster.

    Args:
        graph: the kernels of the program.
        launch_ids: the ids of barriers.
    """
    splitter = _Splitter(graph, launch_ids)
    seeds = [
        equation
        for equation in graph.critical_collectives
        if graph.ready_time[equation.inputs[0]] and splitter.is_splittable(equation)
    ]
    if splitter.seconds_of(seeds) < _MIN_SHARE * graph.seconds:
        return graph.program
    for seed in seeds:
        splitter.split_around(seed)
    return splitter.program()


@final
class _Splitter:
    """Chooses the regions of a program that are split.

    Attributes:
        graph: the kernels of the program.
        launch_ids: the ids of barriers.
        chosen: for each number of parts, the regions that are split into so many.
        visited: the equations of all regions so far.
    """

    def __init__(self, graph: KernelGraph, launch_ids: Iterator[int]):
        self.graph = graph
        self.launch_ids = launch_ids
        self.chosen = {parts: SplitRegion(parts) for parts in _PARTS}
        self.visited: set[Equation] = set()
        self._best: dict[Hashable, int] = {}  # the best number of parts, by the structure of a region

    def is_splittable(self, equation: Equation, parts: int = _PARTS[0]) -> bool:
        """Return whether the parts of a collective do not take much longer than the whole."""
        op, operand, mesh = equation.op, equation.inputs[0].type, self.graph.local.mesh
        if not isinstance(op, Collective) or op.moved_dims is None:
            return False
        dims = [dim for dim, size in enumerate(operand.shape) if dim not in op.moved_dims and size % parts == 0]
        if not dims:
            return False
        whole, part = (
            self.graph.chip.collective_time(op.traffic(type, mesh), mesh, op.communicates_along)
            for type in (operand, part_type(operand, dims[0], parts))
        )
        return parts * part <= _MAX_SLOWDOWN * whole

    @cached_property
    def _finders(self) -> dict[int, RegionFinder]:
        graph = self.graph
        return {
            parts: RegionFinder(
                graph.program,
                parts,
                graph.bits,
                frozenset(each for each in graph.collectives if self.is_splittable(each, parts)),
            )
            for parts in _PARTS
        }

    def split_around(self, seed: Equation) -> None:
        """Choose the number of parts of the region around a collective that the simulator predicts to be fastest."""
        if seed in self.visited:
            return
        regions = []
        excluded = frozenset(self.visited)
        for finder in self._finders.values():
            region = finder.region(seed, excluded)
            self.visited.update(region.dims)
            if not self._can_pay(region):
                break
            regions.append(region)
        if not regions:
            return
        window = self._window(regions)
        positions = {equation: index for index, equation in enumerate(window.equations)}
        key = (window, *(tuple((positions[each], dims) for each, dims in region.dims.items()) for region in regions))
        if key not in self._best:
            self._best[key] = self._fastest(window, regions)
        for region in regions:
            if region.parts == self._best[key]:
                self.chosen[region.parts].dims.update(region.dims)

    def _can_pay(self, region: SplitRegion) -> bool:
        """Return whether splitting a region may save time.

        Its products and critical collectives take long enough, and there are products before and after a collective. A
        gather of a weight waits for no product, and no product waits for a reduction of a gradient: XLA would hide
        several short ones of these worse than a long one.
        """
        graph = self.graph
        compute = sum(graph.seconds_of(equation) for equation in region.dims if equation.op.is_contraction)
        critical = self.seconds_of(each for each in graph.critical_collectives if each in region.dims)
        starts = [time for time in map(graph.start_of, region.dims) if time < math.inf]
        if not starts or min(compute, critical) < _MIN_EXTENT * (max(starts) - min(starts)):
            return False
        stages = split_stages(graph.program, region, graph.bits)
        return len({stage for equation, stage in stages.items() if equation.op.is_contraction}) > 1

    def seconds_of(self, collectives: Iterable[Equation]) -> float:
        """Return the seconds of collectives."""
        return sum(self.graph.local.launch_seconds([equation], self.graph.chip) for equation in collectives)

    def _window(self, regions: Sequence[SplitRegion]) -> Program:
        """Return the part of the program, in program order, that contains the equations of regions."""
        equations = self.graph.program.equations
        inside = [index for index, each in enumerate(equations) if any(each in region.dims for region in regions)]
        first, end = inside[0], inside[-1] + 1
        window = equations[first:end]
        defined = {value for equation in window for value in equation.outputs}
        read = dict.fromkeys(value for equation in window for value in equation.inputs)
        used_later = {value for equation in equations[end:] for value in equation.inputs}
        used_later.update(self.graph.program.outputs)
        outputs = [value for equation in window for value in equation.outputs if value in used_later]
        return Program(tuple(value for value in read if value not in defined), window, tuple(outputs))

    def _fastest(self, window: Program, regions: Sequence[SplitRegion]) -> int:
        """Return the number of parts for which a part of the program is fastest; 1 if splitting does not pay."""
        compute, least = self._simulate(window)
        best = 1
        for region in regions:
            gain = max(_MIN_GAIN[region.parts] * least, _MIN_SHARE * self.graph.seconds)
            if least - compute < gain:
                break  # even if nothing were exposed
            _, seconds = self._simulate(emit_parts(window, region, self.graph.bits, self.launch_ids))
            if least - seconds < gain:
                break  # more parts have more overhead
            best, least = region.parts, seconds
        return best

    def _simulate(self, window: Program) -> tuple[float, float]:
        """Return the seconds of the kernels of a program, and the seconds of the program."""
        local, chip = replace(self.graph.local, program=window), self.graph.chip
        graph = KernelGraph.from_program(local, window, chip)
        ordered = overlap_independent_products(graph, self.launch_ids)
        scheduled = local if ordered is window else replace(local, program=ordered)
        return graph.seconds, simulated_seconds(scheduled, chip)

    def program(self) -> Program:
        """Return the program with all chosen regions in parts."""
        program = self.graph.program
        for region in self.chosen.values():
            if region.dims:
                program = emit_parts(program, region, self.graph.bits, self.launch_ids)
        return program
