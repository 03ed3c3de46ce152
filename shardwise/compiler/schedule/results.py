"""results: let collectives of results run beside the compute that is left.

A data-parallel step with a sharded optimizer gathers each updated weight, and nothing in the step needs it. XLA does
what nothing needs at the end, where no kernel is left to hide it. But the weights of the last layers could be updated
and gathered while the gradients of the first layers are computed. A barrier therefore lets a later product wait for
each such collective.
"""

from bisect import bisect_left
from collections.abc import Iterator

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.order import order_by_launches
from shardwise.compiler.schedule.wait import Wait, let_wait

_LONGEST = 2.0  # a launch takes at most this many times as long as the longest collective
_SLACK = 3.0  # a product waits for a launch this many times its own time after it could have ended: XLA starts it late


def send_results_early(graph: KernelGraph, numbers: Iterator[int]) -> Program:
    """Return the program with collectives of results before products that do not need them.

    Args:
        graph: the kernels of the program.
        numbers: the numbers of barriers.
    """
    launches = _launches(graph)
    if not launches:
        return graph.program
    products = [equation for equation in graph.program.equations if equation.op.is_contraction]
    starts = [graph.starts[graph.number_of[product]] for product in products]
    waiting: dict[Equation, list[Equation]] = {}
    free = 0.0
    for launch in launches:
        seconds = sum(graph.local.collective_seconds(equation, graph.chip) for equation in launch)
        free = max(free, *(graph.earliest[equation.inputs[0]] for equation in launch)) + seconds
        number = bisect_left(starts, free + _SLACK * seconds)
        if number < len(products):
            waiting.setdefault(products[number], []).extend(launch)
    if not waiting:
        return graph.program
    waits = [Wait((product,), others) for product, others in waiting.items()]
    return order_by_launches(let_wait(graph.program, waits, numbers), (), numbers, graph.program)


def _launches(graph: KernelGraph) -> list[list[Equation]]:
    """Return the collectives of results in the order in which they could run, those of one launch together."""
    local, chip = graph.local, graph.chip
    ordered = sorted(_of_results(graph), key=lambda equation: graph.earliest[equation.inputs[0]])
    longest = max((local.collective_seconds(equation, chip) for equation in ordered), default=0.0)
    launches: list[list[Equation]] = []
    room = 0.0
    for equation in ordered:
        seconds = local.collective_seconds(equation, chip)
        if seconds > room:
            launches.append([])
            room = _LONGEST * longest
        launches[-1].append(equation)
        room -= seconds
    return launches


def _of_results(graph: KernelGraph) -> list[Equation]:
    """Return the collectives whose results are results of the program, and needed by nothing else."""
    used = {value for equation in graph.program.equations for value in equation.inputs}
    outputs = set(graph.program.outputs)
    return [
        equation
        for equation in graph.collectives
        if outputs.issuperset(equation.outputs) and used.isdisjoint(equation.outputs)
    ]
