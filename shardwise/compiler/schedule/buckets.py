"""Buckets: collectives of one kind along the same axes that share a launch.

A launch waits for the last of its operands, and the consumers of each result wait for all of them. In return, it pays
the latency of one collective, and the device waits less often. An all-gather, such as that of a weight, could usually
start long before its deadline, the first use of its result: its launch overlaps with the kernels before the deadline. A
reduction, such as that of a gradient, has its deadline long after its operand is ready: its launch overlaps with the
kernels after the last operand is ready. This is the same problem with time reversed.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.collective.collectives import AllReduce, Collective
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.schedule.kernel_graph import KernelGraph

# A launch of gathers takes at most this many times as long as the longest one: buffers of that size exist in any case.
_LONGEST = 2.0
# A launch may take this many times its latency in any case.
_LATENCIES = 10.0


@final
@dataclass(frozen=True)
class _Candidate:
    """A collective that may share a launch.

    Attributes:
        equation: the collective.
        kernel: the index of its kernel.
        ready: the time at which its operand is ready.
        deadline: the first use of its result.
        bit: its bit among the collectives of the program.
        ancestors: the bits of the collectives that it depends on.
    """

    equation: Equation
    kernel: int
    ready: float
    deadline: float
    bit: int
    ancestors: int

    def reversed(self, end: float) -> "_Candidate":
        """Return the candidate in reversed time."""
        return replace(self, kernel=-self.kernel, ready=end - self.deadline, deadline=end - self.ready)

    def is_independent_of(self, other: "_Candidate") -> bool:
        """Return whether neither collective depends on the other."""
        return not (self.ancestors & other.bit or other.ancestors & self.bit)


def buckets(graph: KernelGraph, in_own_stage: bool = False, delayed: bool = False) -> list[list[Equation]]:
    """Return the collectives of a program that share a launch, for each launch with several.

    Args:
        graph: the kernels of the program.
        in_own_stage: whether the program is a stage of a pipelined loop. It overlaps with another iteration's compute,
            so nothing waits for its first result, and launches may be long.
        delayed: whether launches of gathers will be delayed (`delay_gathers.py`).
    """
    launches: list[list[Equation]] = []
    for group in _shareable(graph):
        reduces = group[0].equation.op.reduces_across_devices
        items = [item.reversed(graph.seconds) for item in group] if reduces else group
        packer = _Packer(graph, reduces, math.inf if in_own_stage else _capacity(group, graph), delayed)
        launches += [[item.equation for item in launch] for launch in packer.launches(items) if len(launch) > 1]
    return launches


def _shareable(graph: KernelGraph) -> list[list[_Candidate]]:
    """Return the collectives of a program that could share a launch, in groups."""
    groups: dict[Hashable, list[_Candidate]] = {}
    for index, kernel in enumerate(graph.kernels):
        equation = kernel.root
        if key := _key(equation, graph.local):
            ready, deadline = graph.ready_time[equation.inputs[0]], graph.first_use[equation.outputs[0]]
            item = _Candidate(equation, index, ready, deadline, graph.bits[equation], graph.ancestors[equation])
            groups.setdefault(key, []).append(item)
    return list(groups.values())


def _key(equation: Equation, local: LocalProgram) -> Hashable:
    op = equation.op
    if not isinstance(op, Collective) or not op.single or not local.bytes_sent(equation):
        return None
    return op.launch_key(equation.inputs[0].type)


def _capacity(items: Sequence[_Candidate], graph: KernelGraph) -> float:
    """Return the longest time of a launch. Reductions share one only to save latency: XLA would start it late."""
    shortest = _LATENCIES * _latency(items[0].equation, graph)
    if items[0].equation.op.reduces_across_devices:
        return shortest
    return max(_LONGEST * max(graph.collective_seconds(item.equation) for item in items), shortest)


def _latency(equation: Equation, graph: KernelGraph) -> float:
    op, mesh = equation.op, graph.local.mesh
    assert isinstance(op, Collective)
    ring = graph.chip.ring(mesh, op.communicates_along)
    return ring.waiting(op.traffic(equation.inputs[0].type, mesh)[0])


@final
@dataclass(frozen=True)
class _Packer:
    """Packs collectives of one key into launches.

    Attributes:
        graph: the kernels.
        reversed: whether time is reversed, as it is for reductions. XLA copies the operands of a shared all-reduce into
            one array, and the results out of it.
        capacity: the longest time of a launch.
        delayed: whether launches of gathers will be delayed.
    """

    graph: KernelGraph
    reversed: bool
    capacity: float
    delayed: bool

    def launches(self, items: Sequence[_Candidate]) -> list[list[_Candidate]]:
        """Return launches in the order of their deadlines."""
        launches: list[list[_Candidate]] = []
        before = _LinkState(0.0, 0.0, 0.0, 0.0)  # before the last launch
        for item in sorted(items, key=lambda item: (item.deadline, item.kernel)):
            if launches and self._joins(item, launches[-1], before):
                launches[-1].append(item)
            else:
                before = self._after(launches[-1], before) if launches else before
                launches.append([item])
        return launches

    def _joins(self, item: _Candidate, launch: Sequence[_Candidate], before: "_LinkState") -> bool:
        """Return whether a collective joins a launch: if the device then does not wait longer, copying included."""
        together = [*launch, item]
        if not all(map(item.is_independent_of, launch)):
            return False
        if item.ready > launch[0].deadline or self._seconds(together) > self.capacity:
            return False
        saved = self._after([item], self._after(launch, before)).waited - self._after(together, before).waited
        if self.reversed:
            # Hidden latency is saved too: a launch occupies the device and its links.
            saved = max(saved, _latency(item.equation, self.graph)) if saved >= 0 else saved
            if isinstance(item.equation.op, AllReduce):
                saved -= self._copying(together if len(launch) == 1 else [item])
        return saved >= 0

    def _after(self, launch: Sequence[_Candidate], before: "_LinkState") -> "_LinkState":
        """Return the links after a launch. It starts not long before its deadline, because its results take memory."""
        deadline, seconds = launch[0].deadline, self._seconds(launch) + self._between_kernels
        earliest = before.deadline if before.deadline + seconds <= deadline else 0.0
        start = max(earliest, before.free, *(item.ready for item in launch))
        delay = max(0.0, seconds - self._room(start, deadline))
        late = max(before.late, start + seconds - deadline)
        return _LinkState(start + seconds, deadline, late, before.delays + delay)

    @cached_property
    def _between_kernels(self) -> float:
        """The time between delayed launches, which start after a product."""
        if self.reversed or not self.delayed:
            return 0.0
        products = [self.graph.seconds_of(e) for e in self.graph.program.equations if e.op.is_contraction]
        return sum(products) / max(1, len(products))

    def _room(self, start: float, deadline: float) -> float:
        """Return the longest time in which a launch delays no critical collective."""
        if start >= deadline:
            return 0.0
        if self.reversed:
            start, deadline = self.graph.seconds - deadline, self.graph.seconds - start
        return self.graph.longest_gap(start, deadline)

    def _seconds(self, launch: Sequence[_Candidate]) -> float:
        return self.graph.launch_seconds([item.equation for item in launch])

    def _copying(self, items: Sequence[_Candidate]) -> float:
        """Return the time in which operands and results are copied: each is read and written once."""
        values = [value for item in items for value in (*item.equation.inputs, *item.equation.outputs)]
        return self.graph.chip.memory_time(2.0 * sum(value.type.nbytes for value in values))


class _LinkState(NamedTuple):
    """The state of the links between two launches.

    Attributes:
        free: the time when they are free, as if the device never waited.
        deadline: the deadline of the preceding launch.
        late: how long the device has waited for launches so far. All later deadlines are later by this time.
        delays: how long launches have delayed critical collectives.
    """

    free: float
    deadline: float
    late: float
    delays: float

    @property
    def waited(self) -> float:
        """How long the device has waited so far."""
        return self.late + self.delays
