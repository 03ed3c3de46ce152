"""Buckets: collectives of one kind along the same axes that share a launch.

A launch waits for the last of its operands, and everything that needs one of its results waits for all of them. In
return, it pays the latency of one collective, and the device has fewer waits. An all-gather, such as that of a weight,
could usually start long before its result is needed: its launch runs beside the kernels before the first need. A
reduction, such as that of a gradient, is needed long after its operand is ready: its launch runs beside the kernels
after the last operand is ready. This is the same problem with time reversed.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.schedule.kernel_graph import KernelGraph

# A launch of gathers takes at most this many times as long as the longest one: buffers of that size exist in any case.
_LONGEST = 2.0
# A launch may take this many times its latency in any case.
_LATENCIES = 10.0


@final
@dataclass(frozen=True)
class _Item:
    """A collective that may share a launch.

    Attributes:
        equation: the collective.
        number: its kernel.
        ready: the time at which its operand exists.
        need: the time at which its result is needed.
        bit: its bit among the collectives of the program.
        needs: the bits of the collectives that it needs.
    """

    equation: Equation
    number: int
    ready: float
    need: float
    bit: int
    needs: int

    def reversed(self, end: float) -> "_Item":
        """Return the item in reversed time."""
        return replace(self, number=-self.number, ready=end - self.need, need=end - self.ready)

    def is_independent_of(self, other: "_Item") -> bool:
        """Return whether neither collective needs the other's result."""
        return not (self.needs & other.bit or other.needs & self.bit)


def buckets(graph: KernelGraph, in_own_stage: bool = False) -> list[list[Equation]]:
    """Return the collectives of a program that share a launch, for each launch with several.

    Args:
        graph: the kernels of the program.
        in_own_stage: whether the program runs beside another iteration's compute, so that nothing waits for its first
            result. Then launches may be long.
    """
    launches: list[list[Equation]] = []
    for group in _shareable(graph):
        reduces = group[0].equation.op.reduces_across_devices
        items = [item.reversed(graph.seconds) for item in group] if reduces else group
        filling = _Filling(graph, reduces, math.inf if in_own_stage else _capacity(group, graph))
        launches += [[item.equation for item in launch] for launch in filling.launches(items) if len(launch) > 1]
    return launches


def _shareable(graph: KernelGraph) -> list[list[_Item]]:
    """Return the collectives of a program that could share a launch, in groups."""
    groups: dict[Hashable, list[_Item]] = {}
    for number, kernel in enumerate(graph.kernels):
        equation = kernel.root
        if key := _key(equation, graph.local):
            ready, need = graph.available[equation.inputs[0]], graph.needed[equation.outputs[0]]
            item = _Item(equation, number, ready, need, graph.bits[equation], graph.needs[equation])
            groups.setdefault(key, []).append(item)
    return list(groups.values())


def _key(equation: Equation, local: LocalProgram) -> Hashable:
    op = equation.op
    if not isinstance(op, Collective) or not op.single or not local.bytes_sent(equation):
        return None
    return op.launch_key(equation.inputs[0].type)


def _capacity(items: Sequence[_Item], graph: KernelGraph) -> float:
    """Return the longest time of a launch. Reductions share one only to save latency: XLA would start it late."""
    shortest = _LATENCIES * _latency(items[0].equation, graph)
    if items[0].equation.op.reduces_across_devices:
        return shortest
    return max(_LONGEST * max(graph.local.launch_seconds([item.equation], graph.chip) for item in items), shortest)


def _latency(equation: Equation, graph: KernelGraph) -> float:
    op, mesh = equation.op, graph.local.mesh
    assert isinstance(op, Collective)
    ring = graph.chip.ring(mesh, op.communicates_along)
    return min(map(ring.waiting, op.traffic(equation.inputs[0].type, mesh)))


@final
@dataclass(frozen=True)
class _Filling:
    """Fills launches with collectives of one key.

    Attributes:
        graph: the kernels.
        reversed: whether time is reversed, as it is for reductions. XLA copies the operands of a shared launch of
            reductions into one array, and the results out of it.
        capacity: the longest time of a launch.
    """

    graph: KernelGraph
    reversed: bool
    capacity: float

    def launches(self, items: Sequence[_Item]) -> list[list[_Item]]:
        """Return launches in the order of their first needs."""
        launches: list[list[_Item]] = []
        before = _Links(0.0, 0.0, 0.0, 0.0)  # before the last launch
        for item in sorted(items, key=lambda item: (item.need, item.number)):
            if launches and self._joins(item, launches[-1], before):
                launches[-1].append(item)
            else:
                before = self._after(launches[-1], before) if launches else before
                launches.append([item])
        return launches

    def _joins(self, item: _Item, launch: Sequence[_Item], before: "_Links") -> bool:
        """Return whether a collective joins a launch: if the device then does not wait longer, copying included."""
        together = [*launch, item]
        if not all(map(item.is_independent_of, launch)):
            return False
        if item.ready > launch[0].need or self._seconds(together) > self.capacity:
            return False
        saved = self._after([item], self._after(launch, before)).waited - self._after(together, before).waited
        if self.reversed:
            # Hidden latency is saved too: a launch occupies the device and its links.
            saved = max(saved, _latency(item.equation, self.graph)) if saved >= 0 else saved
            saved -= self._copying(together if len(launch) == 1 else [item])
        return saved >= 0

    def _after(self, launch: Sequence[_Item], before: "_Links") -> "_Links":
        """Return the links after a launch. It starts not long before it is needed: its results take memory."""
        need, seconds = launch[0].need, self._seconds(launch)
        earliest = before.need if before.need + seconds <= need else 0.0
        start = max(earliest, before.free, *(item.ready for item in launch))
        delay = max(0.0, seconds - self._room(start, need))
        return _Links(start + seconds, need, max(before.late, start + seconds - need), before.delays + delay)

    def _room(self, start: float, need: float) -> float:
        """Return the longest time in which a launch delays no urgent collective."""
        if start >= need:
            return 0.0
        if self.reversed:
            start, need = self.graph.seconds - need, self.graph.seconds - start
        return self.graph.longest_gap(start, need)

    def _seconds(self, launch: Sequence[_Item]) -> float:
        return self.graph.local.launch_seconds([item.equation for item in launch], self.graph.chip)

    def _copying(self, items: Sequence[_Item]) -> float:
        """Return the time in which operands and results are copied: each is read and written once."""
        values = [value for item in items for value in (*item.equation.inputs, *item.equation.outputs)]
        return self.graph.chip.memory_time(2.0 * sum(value.type.nbytes for value in values))


class _Links(NamedTuple):
    """The links between two launches.

    Attributes:
        free: the time when they are free, as if the device never waited.
        need: the first need of the launch before.
        late: how long the device has waited for launches so far. All later needs are later by this time.
        delays: how long launches have delayed collectives that are urgent.
    """

    free: float
    need: float
    late: float
    delays: float

    @property
    def waited(self) -> float:
        """How long the device has waited so far."""
        return self.late + self.delays
