"""urgent: let launches end before collectives that cannot wait.

An urgent collective, such as an all-to-all of activations, is needed as soon as its operand is ready. XLA has one
collective in flight at a time. If a launch is needed soon after an urgent collective, XLA starts it only after that
one, and the device waits. The kernels before the urgent collective could have hidden it. A barrier therefore lets the
urgent collective wait for the launch.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.schedule.kernel_graph import KernelGraph


def end_before_urgent(graph: KernelGraph, launches: Sequence[Sequence[Equation]], numbers: Iterator[int]) -> Program:
    """Return the program with barriers before urgent collectives. A launch may stand after the barrier that needs it.

    Args:
        graph: the kernels of the program.
        launches: the collectives that share a launch; the others have their own.
        numbers: the numbers of barriers.
    """
    shared = {equation for launch in launches for equation in launch}
    alone = [(equation,) for equation in graph.collectives if equation not in shared]
    waiting: dict[Equation, list[Value]] = {}  # for each urgent collective, what it waits for
    renamed: dict[Value, Value] = {}
    for launch in (*launches, *alone):
        urgent = _urgent_before(graph, launch)
        if urgent is None:
            continue
        results = [value for equation in launch for value in equation.outputs]
        renamed.update((value, Value(value.type)) for value in results)
        waiting.setdefault(urgent, []).extend(results)
    if not waiting:
        return graph.program
    equations: list[Equation] = []
    for equation in graph.program.equations:
        inputs = [renamed.get(value, value) for value in equation.inputs]
        if equation in waiting:
            barrier, operand = Barrier(next(numbers)), Value(inputs[0].type)
            passed = {inputs[0]: operand, **{value: renamed[value] for value in waiting[equation]}}
            equations += [Equation(barrier, [old], [new], equation.source) for old, new in passed.items()]
            inputs[0] = operand
        equations.append(equation.replace(inputs=inputs))
    return graph.program.with_equations(equations, [renamed.get(value, value) for value in graph.program.outputs])


def _urgent_before(graph: KernelGraph, launch: Sequence[Equation]) -> Equation | None:
    """Return the urgent collective before which a launch should end; None if there is no room before it."""
    need = min(graph.needed[value] for equation in launch for value in equation.outputs)
    ready = max(graph.available[value] for equation in launch for value in equation.inputs)
    seconds = graph.local.launch_seconds(launch, graph.chip)
    number = bisect_left(graph.urgent, need) - 1
    if number < 0 or graph.urgent[number] < ready + seconds or need - graph.urgent[number] >= seconds:
        return None
    return graph.urgent_equations[number]
