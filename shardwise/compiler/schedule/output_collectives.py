"""Output collectives: overlap collectives whose results are program outputs with the remaining compute.

A data-parallel step with a sharded optimizer gathers each updated weight, and nothing in the step reads it. XLA sinks
such a collective to the end, where no kernel is left to hide it. But the weights of the last layers could be updated
and gathered while the gradients of the first layers are computed. Therefore a later product gets a control dependency
on each such collective.
"""

from bisect import bisect_left
from collections.abc import Iterator

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.schedule.control_dependencies import ControlDependency, order_by_dependencies
from shardwise.compiler.schedule.kernel_graph import KernelGraph

_LONGEST = 2.0  # a launch takes at most this many times as long as the longest collective
_SLACK = 3.0  # a product runs at least this many times the launch's seconds after it, because XLA starts a launch late


def advance_output_collectives(graph: KernelGraph, launch_ids: Iterator[int]) -> Program:
    """Return the program with collectives of outputs before products that do not depend on them.

    Args:
        graph: the kernels of the program.
        launch_ids: the ids of barriers.
    """
    launches = _launches(graph)
    if not launches:
        return graph.program
    products = [equation for equation in graph.program.equations if equation.op.is_contraction]
    starts = list(map(graph.start_of, products))
    predecessors: dict[Equation, list[Equation]] = {}
    free = 0.0  # the time at which the links are free
    for launch in launches:
        seconds = sum(graph.collective_seconds(equation) for equation in launch)
        free = max(free, *(graph.asap[equation.inputs[0]] for equation in launch)) + seconds
        index = bisect_left(starts, free + _SLACK * seconds)
        if index < len(products):
            predecessors.setdefault(products[index], []).extend(launch)
    dependencies = [ControlDependency((product,), others) for product, others in predecessors.items()]
    return order_by_dependencies(graph.program, dependencies, launch_ids)


def _launches(graph: KernelGraph) -> list[list[Equation]]:
    """Return the collectives of outputs by their earliest start, those of one launch together."""
    collectives = _output_collectives(graph)
    if not collectives:
        return []
    longest = max(graph.collective_seconds(equation) for equation in collectives)
    launches: list[list[Equation]] = []
    room = 0.0
    for equation in sorted(collectives, key=lambda equation: graph.asap[equation.inputs[0]]):
        seconds = graph.collective_seconds(equation)
        if seconds > room:
            launches.append([])
            room = _LONGEST * longest
        launches[-1].append(equation)
        room -= seconds
    return launches


def _output_collectives(graph: KernelGraph) -> list[Equation]:
    """Return the collectives whose results are outputs of the program, and read by no equation."""
    used = {value for equation in graph.program.equations for value in equation.inputs}
    outputs = set(graph.program.outputs)
    return [
        equation
        for equation in graph.collectives
        if outputs.issuperset(equation.outputs) and used.isdisjoint(equation.outputs)
    ]
