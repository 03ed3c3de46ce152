"""Delayed gathers: start gathers that could start at any time shortly before their results are needed.

XLA has one collective in flight at a time, orders instructions from the last one to the first, and hides a launch
behind more kernels than it needs. That is harmless if there are enough kernels. If the gathers of the weights of many
layers take about as long as the kernels, none are left for the first layers: their gathers run one after the other at
the start, all exposed, and their results take memory. Then each launch gets a control dependency on a product before
its deadline, so that the kernels in between take as long as the launch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.schedule.control_dependencies import ControlDependency
from shardwise.compiler.schedule.kernel_graph import KernelGraph

_AMPLE = 1.2  # XLA hides gathers if the kernels before the last one's deadline take this many times as long
_SLACK = 1.05  # the kernels beside a delayed launch take this many times as long
_CRITICAL = 0.1  # gathers are delayed if critical collectives take at most this fraction of the time of kernels


def gathers_are_crowded(graph: KernelGraph) -> bool:
    """Return whether the gathers of arguments take about as long as the kernels that could hide them.

    Critical collectives need the links at times that are known less well: if they take long, gathers are not crowded.
    """
    gathers = [each for (each,) in _gathers(graph, ()) if not any(graph.ready_time[value] for value in each.inputs)]
    deadline = max((_deadline(graph, (each,)) for each in gathers), default=0.0)
    if _AMPLE * sum(map(graph.collective_seconds, gathers)) <= deadline:
        return False
    return sum(map(graph.collective_seconds, graph.critical_collectives)) <= _CRITICAL * graph.seconds


def delay_gathers(graph: KernelGraph, launches: Sequence[Sequence[Equation]]) -> list[ControlDependency]:
    """Return the control dependencies of launches of gathers on products.

    Args:
        graph: the kernels of the program.
        launches: the collectives that share a launch; each other collective is a launch of its own.
    """
    products = [equation for equation in graph.program.equations if equation.op.is_contraction]
    ends = [graph.start_of(product) + graph.seconds_of(product) for product in products]
    delayed: dict[Equation, list[Equation]] = {}
    start = graph.seconds  # of the launch with the next deadline, before which this one completes
    for launch in sorted(_gathers(graph, launches), key=lambda launch: _deadline(graph, launch), reverse=True):
        end = min(start, _deadline(graph, launch))
        ready = max(graph.ready_time[value] for equation in launch for value in equation.inputs)
        start = max(ready, end - _SLACK * graph.launch_seconds(launch))
        index = bisect_right(ends, start) - 1
        if index < 0:
            break
        if ready < ends[index] and not _has_critical(graph, ends[index], end):
            start = ends[index]
            delayed.setdefault(products[index], []).extend(launch)
    return [ControlDependency(launch, (product,)) for product, launch in delayed.items()]


def _gathers(graph: KernelGraph, launches: Sequence[Sequence[Equation]]) -> list[Sequence[Equation]]:
    """Return the launches that do not reduce, and whose results some kernel reads."""
    shared = set(chain.from_iterable(launches))
    alone = [(equation,) for equation in graph.collectives if equation not in shared]
    return [
        launch
        for launch in (*launches, *alone)
        if not launch[0].op.reduces_across_devices and _deadline(graph, launch) < graph.seconds
    ]


def _deadline(graph: KernelGraph, launch: Sequence[Equation]) -> float:
    return min(graph.first_use[value] for equation in launch for value in equation.outputs)


def _has_critical(graph: KernelGraph, start: float, end: float) -> bool:
    """Return whether a critical collective, which needs the links, is between two times."""
    times = graph.critical_times
    return bisect_left(times, end) > bisect_left(times, start)
