"""Independent products: hide collectives on the critical path behind products that nothing needs soon.

In the backward pass of a tensor-parallel layer, an all-reduce of an activation's gradient is on the critical path, and
the products that compute the gradients of weights are not. XLA often computes these before the all-reduce starts, or at
the end of the step. Control dependencies let them run after its operand is ready and before its first consumer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.schedule.control_dependencies import ControlDependency, order_by_dependencies
from shardwise.compiler.schedule.kernel_graph import KernelGraph

_WINDOW = 8.0  # products are searched this many times the collective's seconds before and after it


def overlap_independent_products(graph: KernelGraph, launch_ids: Iterator[int]) -> Program:
    """Return the program with products between the operand of a critical collective and its first consumer.

    Args:
        graph: the kernels of the program.
        launch_ids: the ids of barriers.
    """
    if not graph.critical_collectives:
        return graph.program
    products = [equation for equation in graph.program.equations if equation.op.is_contraction]
    starts = list(map(graph.start_of, products))
    consumers = _first_consumers(graph.program)
    producers = graph.program.producers()
    dependencies: list[ControlDependency] = []
    constrained: set[Equation] = set()
    for critical, time in zip(graph.critical_collectives, graph.critical_times, strict=True):
        consumer, producer = consumers.get(critical.outputs[0]), producers.get(critical.inputs[0])
        if consumer is None or producer is None or {consumer, producer} & constrained:
            continue
        exposed = graph.collective_seconds(critical)
        window = (time - _WINDOW * exposed, time + _WINDOW * exposed)
        near = products[bisect_left(starts, window[0]) : bisect_right(starts, window[1])]
        excluded = constrained | _ancestors(graph, critical, producers, window[0])
        chosen: list[Equation] = []
        for product in near:
            if exposed > 0 and product not in excluded and _can_run_at(graph, product, time):
                chosen.append(product)
                exposed -= graph.seconds_of(product)
        if chosen:
            constrained |= {consumer, producer, *chosen}
            dependencies += [ControlDependency(chosen, (producer,)), ControlDependency((consumer,), chosen)]
    return order_by_dependencies(graph.program, dependencies, launch_ids)


def _ancestors(
    graph: KernelGraph, equation: Equation, producers: Mapping[Value, Equation], start: float
) -> set[Equation]:
    """Return the equations that an equation depends on, if they are in kernels that start after `start`."""
    ancestors: set[Equation] = set()
    stack = [equation]
    while stack:
        for value in stack.pop().inputs:
            other = producers.get(value)
            if other is not None and other not in ancestors and graph.start_of(other) >= start:
                ancestors.add(other)
                stack.append(other)
    return ancestors


def _can_run_at(graph: KernelGraph, product: Equation, time: float) -> bool:
    """Return whether a product could run at a time: its operands are ready, and its result is not needed yet."""
    ready = max(graph.ready_time[value] for value in product.inputs)
    return ready < time and graph.alap[product.outputs[0]] >= time + graph.seconds_of(product)


def _first_consumers(program: Program) -> dict[Value, Equation]:
    consumers: dict[Value, Equation] = {}
    for equation in program.equations:
        for value in equation.inputs:
            consumers.setdefault(value, equation)
    return consumers
