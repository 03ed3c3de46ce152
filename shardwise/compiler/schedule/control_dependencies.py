"""Control dependencies: equations that must run after others whose results they do not read.

StableHLO has no control dependencies, so an `optimization_barrier` enforces them: the results of the predecessors and
an operand of each successor pass through one barrier.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.schedule.topological_sort import topological_sort


class ControlDependency(NamedTuple):
    """Equations that run after others.

    Attributes:
        successors: the equations that run later. Each has operands, and is a successor in no other dependency.
        predecessors: the equations that run first. Each is a predecessor in no other dependency.
    """

    successors: Sequence[Equation]
    predecessors: Sequence[Equation]


def order_by_dependencies(
    program: Program, dependencies: Sequence[ControlDependency], launch_ids: Iterator[int]
) -> Program:
    """Return the program with control dependencies, sorted; the program itself if there are none.

    Dependencies that form a cycle are dropped.

    Args:
        program: the program.
        dependencies: the control dependencies.
        launch_ids: the ids of barriers.
    """
    if not dependencies:
        return program
    return topological_sort(add_control_dependencies(program, dependencies, launch_ids), (), launch_ids, program)


def add_control_dependencies(
    program: Program, dependencies: Sequence[ControlDependency], launch_ids: Iterator[int]
) -> Program:
    """Return the program with control dependencies, not sorted: a barrier may stand before its operands' producers.

    Args:
        program: the program.
        dependencies: the control dependencies. Each becomes one barrier, before its first successor. Without
            successors, the barrier is after the last predecessor, and all that reads a result of one waits for all.
        launch_ids: the ids of barriers.
    """
    renamed = {value: Value(value.type) for each in dependencies for e in each.predecessors for value in e.outputs}
    dependency_of = {equation: each for each in dependencies for equation in each.successors}
    place = {equation: index for index, equation in enumerate(program.equations)}
    after = {max(each.predecessors, key=place.__getitem__): each for each in dependencies if not each.successors}
    operands: dict[Equation, Value] = {}  # the first operand of each successor, after the barrier
    equations: list[Equation] = []

    def add_barrier(dependency: ControlDependency, source: Source) -> None:
        barrier = Barrier(next(launch_ids))
        passed = {value: renamed[value] for predecessor in dependency.predecessors for value in predecessor.outputs}
        results = set(passed)
        for successor in dependency.successors:
            value = successor.inputs[0]
            operands[successor] = passed.setdefault(value, Value(value.type))
        equations.extend(
            Equation(barrier, [old if old in results else renamed.get(old, old)], [new], source)
            for old, new in passed.items()
        )

    for equation in program.equations:
        if equation in dependency_of and equation not in operands:
            add_barrier(dependency_of[equation], equation.source)
        if equation in operands or not renamed.keys().isdisjoint(equation.inputs):
            inputs = [renamed.get(value, value) for value in equation.inputs]
            if equation in operands:
                inputs[0] = operands[equation]
            equations.append(equation.replace(inputs=inputs))
        else:
            equations.append(equation)
        if equation in after:
            add_barrier(after[equation], equation.source)
    return program.with_equations(equations, [renamed.get(value, value) for value in program.outputs])
