"""Buckets: collectives of one kind along the same axes that share a launch.

A launch waits for the last of its operands, and everything that needs one of its results waits for all of them. In
return, it pays the latency of one collective, and the device has fewer waits. An all-gather, such as that of a weight,
could usually start long before its result is needed: its launch runs beside the kernels before the first need. A
reduction, such as that of a gradient, is needed long after its operand is ready: its launch runs beside the kernels
after the last operand is ready. This is the same problem with time reversed.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.schedule.kernel_graph import KernelGraph

# A launch takes at most this many times as long as the longest of its kind: buffers of that size exist in any case.
_LONGEST = 2.0
# And at least this many times its latency, if there are enough collectives.
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
    """

    equation: Equation
    number: int
    ready: float
    need: float

    def reversed(self, end: float) -> "_Item":
        """Return the item in reversed time."""
        return _Item(self.equation, -self.number, end - self.need, end - self.ready)


def buckets(graph: KernelGraph) -> list[list[Equation]]:
    """Return the collectives of a program that share a launch, for each launch with several."""
    launches: list[list[Equation]] = []
    for group in _shareable(graph):
        reduces = group[0].equation.op.reduces_across_devices
        items = [item.reversed(graph.seconds) for item in group] if reduces else group
        launches += [[item.equation for item in launch] for launch in _fill(items, graph) if len(launch) > 1]
    return launches


def largest_buckets(graph: KernelGraph) -> list[list[Equation]]:
    """Return the collectives that can share a launch, in a program that runs beside another iteration's compute.

    All its results are needed in the next iteration, and none sooner.
    """
    return [[item.equation for item in group] for group in _shareable(graph) if len(group) > 1]


def _shareable(graph: KernelGraph) -> list[list[_Item]]:
    """Return the collectives of a program that could share a launch, in groups."""
    groups: dict[Hashable, list[_Item]] = {}
    for number, kernel in enumerate(graph.kernels):
        equation = kernel.root
        if key := _key(equation, graph.local):
            ready, need = graph.available[equation.inputs[0]], graph.needed[equation.outputs[0]]
            groups.setdefault(key, []).append(_Item(equation, number, ready, need))
    return list(groups.values())


def _key(equation: Equation, local: LocalProgram) -> Hashable:
    op = equation.op
    if not isinstance(op, Collective) or not op.single or not local.bytes_sent(equation):
        return None
    return op.launch_key(equation.inputs[0].type)


def _fill(items: Sequence[_Item], graph: KernelGraph) -> Iterator[list[_Item]]:
    """Yield the launches of collectives with one key, in the order of their first needs."""

    def seconds(launch: Sequence[_Item]) -> float:
        return graph.local.launch_seconds([item.equation for item in launch], graph.chip)

    capacity = _capacity([seconds([item]) for item in items], items, graph)
    launch: list[_Item] = []
    before = 0.0  # the first need of the launch before
    for item in sorted(items, key=lambda item: (item.need, item.number)):
        if launch:
            first = launch[0].need
            together = [*launch, item]
            start = max(before, *(other.ready for other in together))
            alone = max(0.0, seconds(launch) - (first - max(before, *(other.ready for other in launch))))
            alone += max(0.0, seconds([item]) - (item.need - max(first, item.ready)))
            fits = item.ready <= first and seconds(together) <= capacity
            if fits and max(0.0, seconds(together) - (first - start)) <= alone:
                launch = together
                continue
            yield launch
            before = first
        launch = [item]
    if launch:
        yield launch


def _capacity(seconds: Sequence[float], items: Sequence[_Item], graph: KernelGraph) -> float:
    """Return the longest time of a launch."""
    op, local = items[0].equation.op, graph.local
    assert isinstance(op, Collective)
    hops = max(algorithm.hops for algorithm in op.traffic(items[0].equation.inputs[0].type, local.mesh))
    latency = hops * graph.chip.ring(local.mesh, op.communicates_along).latency
    return max(_LONGEST * max(seconds), _LATENCIES * latency)
