"""Split collectives: compute the kernels around long collectives on the critical path in parts.

A tensor-parallel layer reduces its activations, and the next product needs the result at once: no kernel is left that
could hide the reduction. But the rows of a batch do not depend on each other. If the layer is computed in two parts,
the second part is computed while the first one is reduced. The same bytes are sent, in more launches, and each kernel
is launched once per part.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
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
_SIMULATED = 6  # the collectives of a region that are simulated
_MAX_SPREAD = 4  # an equal window is searched if it has at most this many times the equations of a region


def split_collectives(graph: KernelGraph, launch_ids: Iterator[int]) -> Program:
    """Return the program with critical collectives, and the kernels around them, in parts where that is faster.

    Args:
        graph: the kernels of the program.
        launch_ids: the ids of barriers.
    """
    splitter = _Splitter(graph, launch_ids)
    seeds = _between_products(graph.program, filter(splitter.is_splittable, graph.critical_collectives))
    if splitter.seconds_of(seeds) < _MIN_SHARE * graph.seconds:
        return graph.program
    for seed in seeds:
        splitter.split_around(seed)
    return splitter.program()


def _between_products(program: Program, collectives: Iterable[Equation]) -> list[Equation]:
    """Return the collectives that depend on a product, and on which a product depends.

    A gather of a weight waits for no product, and no product waits for a reduction of a gradient: XLA would hide
    several short ones of these worse than a long one.
    """
    chosen = list(collectives)
    if not chosen:
        return chosen
    after: set[Value] = set()  # the values that depend on a product
    for equation in program.equations:
        if equation.op.is_contraction or not after.isdisjoint(equation.inputs):
            after.update(equation.outputs)
    before: set[Value] = set()  # the values that a product depends on
    for equation in reversed(program.equations):
        if equation.op.is_contraction or not before.isdisjoint(equation.outputs):
            before.update(equation.inputs)
    return [each for each in chosen if not (after.isdisjoint(each.inputs) or before.isdisjoint(each.outputs))]


class _Decision(NamedTuple):
    """The regions around a collective, and their best number of parts.

    Attributes:
        regions: the regions: those that may save time, and the first one that may not.
        paying: the number of regions that may save time.
        parts: the number of parts that is fastest; 1 if splitting does not pay.
    """

    regions: Sequence[SplitRegion]
    paying: int
    parts: int


class _Pattern(NamedTuple):
    """A decision, which is taken again where the program is equal, as in the layers of a model.

    Attributes:
        decision: the decision.
        window: the part of the program that contains the regions.
        first: the index of its first equation.
        seed: the index of the collective in the program.
    """

    decision: _Decision
    window: Program
    first: int
    seed: int


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
        self._patterns: dict[Op, list[_Pattern]] = {}  # by the op of the collective
        self._finders: dict[int, RegionFinder] = {}

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

    def _region(self, seed: Equation, parts: int) -> SplitRegion:
        """Return the region around a collective; empty if its parts take too long."""
        if not self.is_splittable(seed, parts):
            return SplitRegion(parts)
        if parts not in self._finders:
            graph = self.graph
            splittable = frozenset(each for each in graph.collectives if self.is_splittable(each, parts))
            self._finders[parts] = RegionFinder(graph.program, graph.uses, parts, graph.bits, splittable)
        return self._finders[parts].region(seed, self.visited)

    def split_around(self, seed: Equation) -> None:
        """Choose the number of parts of the region around a collective that the simulator predicts to be fastest."""
        if seed in self.visited:
            return
        decision = self._known_decision(seed) or self._new_decision(seed)
        for region in decision.regions:
            self.visited.update(region.dims)
            if region.parts == decision.parts:
                self.chosen[region.parts].dims.update(region.dims)

    def _known_decision(self, seed: Equation) -> _Decision | None:
        """Return the decision about a collective around which the program is equal; None if there is none."""
        equations = self.graph.program.equations
        for pattern in self._patterns.get(seed.op, ()):
            offset = self._positions[seed] - pattern.seed
            first, end = pattern.first + offset, pattern.first + offset + len(pattern.window.equations)
            if first < 0 or end > len(equations) or self._window(first, end).key != pattern.window.key:
                continue
            _, paying, parts = pattern.decision
            regions = [
                SplitRegion(region.parts, {equations[self._positions[e] + offset]: d for e, d in region.dims.items()})
                for region in pattern.decision.regions
            ]
            is_free = all(map(self.visited.isdisjoint, (region.dims for region in regions)))
            is_rejected = paying and parts == 1  # by the simulator
            if is_free and (is_rejected or len(list(takewhile(self._can_pay, regions))) == paying):
                return _Decision(regions, paying, parts)
        return None

    def _new_decision(self, seed: Equation) -> _Decision:
        """Grow the regions around a collective, and choose its number of parts."""
        regions: list[SplitRegion] = []
        paying: list[SplitRegion] = []
        for parts in _PARTS:
            regions.append(self._region(seed, parts))
            if not self._can_pay(regions[-1]):
                break
            paying.append(regions[-1])
        decision = _Decision(regions, len(paying), self._fastest(self._window_of(paying), paying) if paying else 1)
        inside = [self._positions[equation] for region in regions for equation in region.dims]
        if inside and max(inside) - min(inside) < _MAX_SPREAD * len(inside):
            window = self._window(min(inside), max(inside) + 1)
            pattern = _Pattern(decision, window, min(inside), self._positions[seed])
            self._patterns.setdefault(seed.op, []).append(pattern)
        return decision

    def _can_pay(self, region: SplitRegion) -> bool:
        """Return whether splitting a region may save time.

        Its products and critical collectives take long enough, and it has products before and after a collective.
        """
        graph = self.graph
        compute = sum(graph.seconds_of(equation) for equation in region.dims if equation.op.is_contraction)
        critical = self.seconds_of(each for each in graph.critical_collectives if each in region.dims)
        starts = [time for time in map(graph.start_of, region.dims) if time < math.inf]
        if not starts or min(compute, critical) < _MIN_EXTENT * (max(starts) - min(starts)):
            return False
        stages = split_stages(self._window_of([region]), region, graph.bits)
        return len({stage for equation, stage in stages.items() if equation.op.is_contraction}) > 1

    def seconds_of(self, collectives: Iterable[Equation]) -> float:
        """Return the seconds of collectives."""
        return sum(self.graph.collective_seconds(equation) for equation in collectives)

    @cached_property
    def _positions(self) -> dict[Equation, int]:
        return {equation: index for index, equation in enumerate(self.graph.program.equations)}

    @cached_property
    def _last_uses(self) -> dict[Value, int]:
        """The index of the last equation that reads each value; after the last one for outputs."""
        program = self.graph.program
        last = {value: index for index, equation in enumerate(program.equations) for value in equation.inputs}
        last.update(dict.fromkeys(program.outputs, len(program.equations)))
        return last

    def _window_of(self, regions: Sequence[SplitRegion]) -> Program:
        """Return the part of the program, in program order, that contains the equations of regions."""
        inside = [self._positions[equation] for region in regions for equation in region.dims]
        return self._window(min(inside), max(inside) + 1)

    def _window(self, first: int, end: int) -> Program:
        """Return the part of the program between two indices of equations."""
        window = self.graph.program.equations[first:end]
        defined = dict.fromkeys(value for equation in window for value in equation.outputs)
        read = dict.fromkeys(value for equation in window for value in equation.inputs)
        outputs = tuple(value for value in defined if self._last_uses.get(value, -1) >= end)
        return Program(tuple(value for value in read if value not in defined), window, outputs)

    def _fastest(self, window: Program, regions: Sequence[SplitRegion]) -> int:
        """Return the number of parts for which a part of the program is fastest; 1 if splitting does not pay.

        Of a region with many collectives, such as the forward pass of a model, only the first ones are simulated.
        """
        bits, share = self.graph.bits, 1.0
        collectives = sorted(self._positions[equation] for equation in regions[0].dims if equation in bits)
        if len(collectives) > _SIMULATED:
            share, end = _SIMULATED / len(collectives), collectives[_SIMULATED]
            regions = [region.before(end, self._positions) for region in regions]
            window = self._window_of(regions)
        compute, least = self._simulate(window)
        best = 1
        for region in regions:
            gain = max(_MIN_GAIN[region.parts] * least, _MIN_SHARE * share * self.graph.seconds)
            products = sum(equation.op.is_contraction for equation in region.dims)
            launching = (region.parts - 1) * products * self.graph.chip.kernel_gap
            if least - compute - launching < gain:
                break  # even if nothing were exposed
            _, seconds = self._simulate(emit_parts(window, region, bits, self.launch_ids))
            if least - seconds < gain:
                break  # more parts have more overhead
            best, least = region.parts, seconds
        return best

    def _simulate(self, window: Program) -> tuple[float, float]:
        """Return the seconds of the kernels of a program, and the seconds of the program."""
        local, chip = replace(self.graph.local, program=window), self.graph.chip
        graph = KernelGraph.from_program(local, window, chip)
        ordered = overlap_independent_products(graph, self.launch_ids)
        return graph.seconds, simulated_seconds(local.rewritten(ordered), chip)

    def program(self) -> Program:
        """Return the program with all chosen regions in parts."""
        program = self.graph.program
        for region in self.chosen.values():
            if region.dims:
                program = emit_parts(program, region, self.graph.bits, self.launch_ids)
        return program
