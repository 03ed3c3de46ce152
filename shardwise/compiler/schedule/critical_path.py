"""Critical path: complete launches before collectives that have no slack.

A critical collective, such as an all-to-all of activations, is needed as soon as its operand is ready. XLA has one
collective in flight at a time. If a launch is needed soon after a critical collective, XLA starts it only after that
one, and the device waits. The kernels before the critical collective could have hidden it. Therefore the critical
collective gets a control dependency on the launch.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.schedule.control_dependencies import ControlDependency
from shardwise.compiler.schedule.kernel_graph import KernelGraph


def complete_before_critical(graph: KernelGraph, launches: Sequence[Sequence[Equation]]) -> list[ControlDependency]:
    """Return the control dependencies of critical collectives on launches.

    Args:
        graph: the kernels of the program.
        launches: the collectives that share a launch; each other collective is a launch of its own.
    """
    predecessors: dict[Equation, list[Equation]] = {}
    for launch, index in _launches_before_critical(graph, launches):
        predecessors.setdefault(graph.critical_collectives[index], []).extend(launch)
    return [ControlDependency((critical,), others) for critical, others in predecessors.items()]


def _launches_before_critical(
    graph: KernelGraph, launches: Sequence[Sequence[Equation]]
) -> Iterator[tuple[Sequence[Equation], int]]:
    """Yield the launches to complete before a critical collective, with the index of that collective.

    If a launch depends on another one, both complete before the critical collective, but only the results of the first
    pass through the barrier: a launch cannot wait for a barrier that waits for it.
    """
    if not graph.critical_collectives:
        return
    shared = {equation for launch in launches for equation in launch}
    alone = [(equation,) for equation in graph.collectives if equation not in shared]
    placed = [(launch, _critical_before(graph, launch)) for launch in (*launches, *alone)]
    ancestors = [0] * len(graph.critical_times)  # of the launches that complete before each critical collective
    for launch, index in placed:
        if index is not None:
            ancestors[index] = reduce(or_, (graph.ancestors[equation] for equation in launch), ancestors[index])
    earlier = list(accumulate(ancestors, or_))
    for launch, index in placed:
        if index is not None and not any(graph.bits[equation] & earlier[index] for equation in launch):
            yield launch, index


def _critical_before(graph: KernelGraph, launch: Sequence[Equation]) -> int | None:
    """Return the index of the critical collective before which a launch should complete; None if there is no time."""
    deadline = min(graph.first_use[value] for equation in launch for value in equation.outputs)
    ready = max(graph.ready_time[value] for equation in launch for value in equation.inputs)
    seconds = graph.launch_seconds(launch)
    index = bisect_left(graph.critical_times, deadline) - 1
    if index < 0 or graph.critical_times[index] < ready + seconds or deadline - graph.critical_times[index] >= seconds:
        return None
    return index
