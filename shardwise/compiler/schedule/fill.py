"""fill: hide collectives on the critical path behind products that nothing needs soon.

In the backward pass of a tensor-parallel layer, an all-reduce of an activation's gradient is needed at once, and the
products that compute the gradients of weights are not. XLA often computes these before the all-reduce starts, or at the
end of the step. Barriers therefore let them run after its operand is ready, and let its first consumer wait for them.
"""

from collections.abc import Iterator, Mapping

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.order import order_by_launches
from shardwise.compiler.schedule.wait import Wait, let_wait

_WINDOW = 8.0  # products are looked for this many times as long before and after the collective as it takes


def fill_with_products(graph: KernelGraph, numbers: Iterator[int]) -> Program:
    """Return the program with products between the operand of an urgent collective and its first consumer.

    Args:
        graph: the kernels of the program.
        numbers: the numbers of barriers.
    """
    products = [equation for equation in graph.program.equations if equation.op.is_contraction]
    consumers = _first_consumers(graph.program)
    producers = graph.program.producers()
    waits: list[Wait] = []
    held: set[Equation] = set()
    for urgent, time in zip(graph.urgent_equations, graph.urgent, strict=True):
        consumer, producer = consumers.get(urgent.outputs[0]), producers.get(urgent.inputs[0])
        if consumer is None or producer is None or {consumer, producer} & held:
            continue
        left = graph.local.collective_seconds(urgent, graph.chip)
        window = (time - _WINDOW * left, time + _WINDOW * left)
        near = [product for product in products if window[0] <= graph.start_of(product) <= window[1]]
        excluded = held | _needed_for(graph, urgent, producers, window[0])
        chosen: list[Equation] = []
        for product in near:
            if left > 0 and product not in excluded and _is_free_at(graph, product, time):
                chosen.append(product)
                left -= graph.seconds_of(product)
        if chosen:
            held |= {consumer, producer, *chosen}
            waits += [Wait(chosen, (producer,)), Wait((consumer,), chosen)]
    if not waits:
        return graph.program
    return order_by_launches(let_wait(graph.program, waits, numbers), (), numbers, graph.program)


def _needed_for(
    graph: KernelGraph, equation: Equation, producers: Mapping[Value, Equation], start: float
) -> set[Equation]:
    """Return the equations that an equation needs, if they are in kernels that start after `start`."""
    needed: set[Equation] = set()
    open_equations = [equation]
    while open_equations:
        for value in open_equations.pop().inputs:
            other = producers.get(value)
            if other is not None and other not in needed and graph.start_of(other) >= start:
                needed.add(other)
                open_equations.append(other)
    return needed


def _is_free_at(graph: KernelGraph, product: Equation, time: float) -> bool:
    """Return whether a product could run at a time: its operands exist, and its result is not needed yet."""
    ready = max(graph.available[value] for value in product.inputs)
    return ready < time and graph.latest[product.outputs[0]] >= time + graph.seconds_of(product)


def _first_consumers(program: Program) -> dict[Value, Equation]:
    consumers: dict[Value, Equation] = {}
    for equation in program.equations:
        for value in equation.inputs:
            consumers.setdefault(value, equation)
    return consumers
