"""host_copies: let copies from and to host memory run beside products.

XLA copies asynchronously, but does not know how long a copy takes, and has two copies in flight at a time. In the
modules that were looked at, it copies many arguments before any product runs, and holds all of them in device memory.
Here, each copy gets a window of products that take as long as the copy. A copy to the host starts as soon as the result
exists; a copy to the device ends when it is needed, in the time that the others leave. Barriers keep the windows.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import final

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.schedule.control_dependencies import ControlDependency, order_by_dependencies
from shardwise.compiler.schedule.kernel_graph import KernelGraph, ancestor_bits

_IN_FLIGHT = 2  # the number of copies that XLA has in flight at a time
_ROUNDING = 0.9  # products that take at least this part of the time of a copy hide it


def hide_host_copies(graph: KernelGraph, launch_ids: Iterator[int]) -> Program:
    """Return the program with barriers that let each copy from or to host memory run beside products.

    Args:
        graph: the kernels of the program.
        launch_ids: the ids of barriers.
    """
    copies = [e for e in graph.program.equations if e.op.reads_host_memory or e.op.writes_host_memory]
    products = [e for e in graph.kernel_index if (e.op.is_contraction or e.op.programs) and e.inputs]
    products.sort(key=graph.start_of)
    if not copies or not products or not graph.chip.host_link:
        return graph.program
    starting: dict[int, list[Equation]] = {}
    ending: dict[int, list[Equation]] = {}
    for copy, (first, end) in _windows(graph, copies, products).items():
        if 0 < first < len(products):  # a copy beside the first product, or after the last, need not wait
            starting.setdefault(first, []).append(copy)
        if end < len(products):
            ending.setdefault(end, []).append(copy)
    bits = {equation: 1 << number for number, equation in enumerate((*products, *copies))}
    behind = ancestor_bits(graph.program, bits)
    dependencies = []
    for number in sorted({*starting, *ending}):
        product, waiting = products[number], list(starting.get(number, []))
        others = list(ending.get(number, []))
        before = products[number - 1] if number else None
        if before is not None and not any(behind[copy.inputs[0]] & bits[before] for copy in waiting):
            others.append(before)
        # If the product needs the one before, whose result passes through the barrier, it waits already. Its operand
        # should not pass through the barrier too: XLA could no longer fuse the operand into the product.
        if before not in others or not any(behind[value] & bits[before] for value in product.inputs):
            waiting.append(product)
        needed = reduce(or_, (behind[equation.inputs[0]] for equation in waiting), 0)
        others = [other for other in others if not needed & bits[other]]
        if others:
            dependencies.append(ControlDependency(waiting, others))
    return order_by_dependencies(graph.program, dependencies, launch_ids)


def _windows(
    graph: KernelGraph, copies: Sequence[Equation], products: Sequence[Equation]
) -> dict[Equation, tuple[int, int]]:
    """Return the window of each copy: the first product that runs beside it, and the first that runs after it."""
    starts = [graph.starts[graph.kernel_index[product]] for product in products]
    room = _Room([after - before for before, after in zip(starts, [*starts[1:], graph.seconds], strict=True)])
    windows: dict[Equation, tuple[int, int]] = {}
    spare = 1 if graph.collectives else 0  # a product that hides the collective of a result, such as of a gradient
    to_host = sorted((c for c in copies if c.op.writes_host_memory), key=lambda c: graph.asap[c.inputs[0]])
    for copy in to_host:
        first = bisect_left(starts, graph.asap[copy.inputs[0]]) + spare
        windows[copy] = room.take_after(first, _seconds(graph, copy))
    due = _due(graph, [copy for copy in copies if copy.op.reads_host_memory])
    for copy in sorted(due, key=lambda copy: due[copy]):
        windows[copy] = room.take_before(bisect_left(starts, due[copy]), _seconds(graph, copy))
    return windows


def _seconds(graph: KernelGraph, copy: Equation) -> float:
    return graph.chip.host_time(copy.op.host_bytes(copy.inputs[0].type))


def _due(graph: KernelGraph, copies: Sequence[Equation]) -> dict[Equation, float]:
    """Return the time at which a kernel could first read each copy: all else that the kernel reads exists."""
    times = {copy.outputs[0]: graph.seconds for copy in copies}
    for kernel in graph.kernels:
        for value in times.keys() & kernel.reads.keys():
            times[value] = min(times[value], max(graph.asap[other] for other in kernel.reads))
    return {copy: times[copy.outputs[0]] for copy in copies}


@final
class _Room:
    """The time and the number of copies that are left beside each product."""

    def __init__(self, seconds: Sequence[float]):
        self.seconds = list(seconds)
        self.slots = [_IN_FLIGHT for _ in seconds]

    def take_after(self, first: int, seconds: float) -> tuple[int, int]:
        """Take the first window that starts at a product, or later; without room, the window after all products."""
        window = self._find(range(first, len(self.seconds)), seconds)
        return window or (len(self.seconds), len(self.seconds))

    def take_before(self, end: int, seconds: float) -> tuple[int, int]:
        """Take the last window that ends before a product; without room, one beside products that hide others too."""
        return self._find(range(end - 1, -1, -1), seconds) or self._find(range(end - 1, -1, -1), 0.0) or (0, end)

    def _find(self, numbers: range, seconds: float) -> tuple[int, int] | None:
        """Return the first consecutive products in this order that have room for a copy, and take it."""
        taken: dict[int, float] = {}
        missing = seconds
        for number in numbers:
            if not self.slots[number] or (seconds and not self.seconds[number]):
                taken, missing = {}, seconds
                continue
            taken[number] = min(missing, self.seconds[number])
            missing -= taken[number]
            if missing <= (1 - _ROUNDING) * seconds:
                for each, time in taken.items():
                    self.slots[each] -= 1
                    self.seconds[each] -= time
                return min(taken), max(taken) + 1
        return None
