"""urgent: let launches end before collectives that cannot wait.

An urgent collective, such as an all-to-all of activations, is needed as soon as its operand is ready. XLA has one
collective in flight at a time. If a launch is needed soon after an urgent collective, XLA starts it only after that
one, and the device waits. The kernels before the urgent collective could have hidden it. A barrier therefore lets the
urgent collective wait for the launch.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.wait import Wait, let_wait


def end_before_urgent(graph: KernelGraph, launches: Sequence[Sequence[Equation]], numbers: Iterator[int]) -> Program:
    """Return the program with barriers before urgent collectives. A launch may stand after the barrier that needs it.

    Args:
        graph: the kernels of the program.
        launches: the collectives that share a launch; the others have their own.
        numbers: the numbers of barriers.
    """
    waiting: dict[Equation, list[Equation]] = {}  # for each urgent collective, what it waits for
    for launch, number in _ending(graph, launches):
        waiting.setdefault(graph.urgent_equations[number], []).extend(launch)
    waits = [Wait((urgent,), others) for urgent, others in waiting.items()]
    return let_wait(graph.program, waits, numbers) if waits else graph.program


def _ending(graph: KernelGraph, launches: Sequence[Sequence[Equation]]) -> Iterator[tuple[Sequence[Equation], int]]:
    """Yield the launches that should end before an urgent collective, with its number.

    If a launch needs another one, both end before the urgent collective, but only its own results pass through the
    barrier: it cannot wait for the barrier that waits for it.
    """
    shared = {equation for launch in launches for equation in launch}
    alone = [(equation,) for equation in graph.collectives if equation not in shared]
    found = [(launch, _urgent_before(graph, launch)) for launch in (*launches, *alone)]
    needed = [0] * len(graph.urgent)  # for each urgent collective, what the launches that end before it need
    for launch, number in found:
        if number is not None:
            needed[number] = reduce(or_, (graph.needs[equation] for equation in launch), needed[number])
    earlier = list(accumulate(needed, or_))
    for launch, number in found:
        if number is not None and not any(graph.bits[equation] & earlier[number] for equation in launch):
            yield launch, number


def _urgent_before(graph: KernelGraph, launch: Sequence[Equation]) -> int | None:
    """Return the number of the urgent collective before which a launch should end; None if there is no room."""
    need = min(graph.needed[value] for equation in launch for value in equation.outputs)
    ready = max(graph.available[value] for equation in launch for value in equation.inputs)
    seconds = graph.local.launch_seconds(launch, graph.chip)
    number = bisect_left(graph.urgent, need) - 1
    if number < 0 or graph.urgent[number] < ready + seconds or need - graph.urgent[number] >= seconds:
        return None
    return number
