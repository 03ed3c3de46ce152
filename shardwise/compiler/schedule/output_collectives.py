"""Output collectives: overlap collectives whose results are program outputs with the remaining compute.

A data-parallel step with a sharded optimizer gathers each updated weight, and nothing in the step reads it. XLA sinks
such a collective to the end, where no kernel is left to hide it. But the weights of the last layers could be updated
and gathered while the gradients of the first layers are computed. Therefore a later product gets a control dependency
on each such collective. If a loop over layers computes these gradients, and no product follows, what reads the results
of the loop waits for the collective, which then runs beside the first or the last iteration.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.partition.platform_memory import is_loop
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
    loops = _loops(graph)
    predecessors: dict[Equation, list[Equation]] = {}
    in_loop: dict[Equation, list[Equation]] = {}
    free = 0.0  # the time at which the links are free
    for launch in launches:
        seconds = sum(graph.collective_seconds(equation) for equation in launch)
        free = max(free, *(graph.asap[equation.inputs[0]] for equation in launch)) + seconds
        index = bisect_left(starts, free + _SLACK * seconds)
        if index < len(products):
            predecessors.setdefault(products[index], []).extend(launch)
            continue
        loop = next((loop for loop in loops if free <= graph.start_of(loop) + graph.seconds_of(loop)), None)
        if loop is not None:
            in_loop.setdefault(loop, []).extend(launch)
    dependencies = [ControlDependency((product,), others) for product, others in predecessors.items()]
    dependencies += [ControlDependency((), (loop, *others)) for loop, others in in_loop.items()]
    return order_by_dependencies(graph.program, dependencies, launch_ids)


def _launches(graph: KernelGraph) -> list[list[Equation]]:
    """Return the collectives of outputs by their earliest start, those of one launch together."""
    collectives = _output_collectives(graph)
    if not collectives:
        return []
    longest = max(graph.collective_seconds(equation) for equation in collectives)
    ends = [graph.start_of(loop) + graph.seconds_of(loop) for loop in _loops(graph)]
    launches: list[list[Equation]] = []
    room, loops = 0.0, 0  # the number of loops before the last launch
    for equation in sorted(collectives, key=lambda equation: graph.asap[equation.inputs[0]]):
        seconds, loops_before = graph.collective_seconds(equation), bisect_right(ends, graph.asap[equation.inputs[0]])
        if seconds > room or loops_before > loops:
            launches.append([])
            room, loops = _LONGEST * longest, loops_before
        launches[-1].append(equation)
        room -= seconds
    return launches


def _loops(graph: KernelGraph) -> list[Equation]:
    """Return the loops of the program."""
    return [equation for equation in graph.program.equations if is_loop(equation.op)]


def _output_collectives(graph: KernelGraph) -> list[Equation]:
    """Return the collectives whose results are outputs of the program, and read by no equation."""
    used = {value for equation in graph.program.equations for value in equation.inputs}
    outputs = set(graph.program.outputs)
    return [
        equation
        for equation in graph.collectives
        if outputs.issuperset(equation.outputs) and used.isdisjoint(equation.outputs)
    ]
