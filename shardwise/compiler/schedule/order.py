"""order: a program with the collectives of each launch next to each other, and otherwise nearly in its own order."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.errors import ProgramError


def order_by_launches(
    program: Program, launches: Sequence[Sequence[Equation]], numbers: Iterator[int], unwaited: Program | None = None
) -> Program:
    """Return the program with the collectives of each launch next to each other, with a launch number from `numbers`.

    A launch stands where its first collective stood, or before what needs it, after all that its operands need. If two
    launches need each other, the collectives of one keep their own launches.

    Args:
        program: the program. Equations may stand before those that they need.
        launches: the collectives of each launch.
        numbers: the numbers of launches.
        unwaited: the program without barriers that let equations wait; it is ordered if equations would wait for each
            other.

    Raises:
        ProgramError: if equations need each other.
    """
    kept = list(launches)
    while True:
        graph = _Graph(program, kept)
        order = graph.order()
        if len(order) == len(graph.nodes):
            return program.with_equations(equation for node in order for equation in graph.numbered(node, numbers))
        waiting = set(range(len(graph.nodes))) - set(order)
        blocked = [launch for node, launch in graph.launch_at.items() if node in waiting]
        if not blocked and unwaited is not None:
            return order_by_launches(unwaited, launches, numbers)
        if not blocked:
            raise ProgramError(f"{program.name}: equations need each other")
        kept.remove(max(blocked, key=len))


@final
class _Graph:
    """The equations of a program with their dependencies. A node is a launch, a group of barriers, or one equation.

    Attributes:
        nodes: the equations of each node.
        launch_at: the launches, by their node.
    """

    def __init__(self, program: Program, launches: Sequence[Sequence[Equation]]):
        launch_of = {equation.outputs[0]: number for number, launch in enumerate(launches) for equation in launch}
        self.nodes: list[list[Equation]] = []
        self.launch_at: dict[int, Sequence[Equation]] = {}
        node_of: dict[int, int] = {}  # by the number of the launch
        for group in issue_groups(program):
            number = launch_of.get(group[0].outputs[0]) if group[0].outputs else None
            if number in node_of:
                self.nodes[node_of[number]] += group
                continue
            if number is not None:
                node_of[number] = len(self.nodes)
                self.launch_at[len(self.nodes)] = launches[number]
            self.nodes.append(list(group))
        self.needs = self._needs()

    def numbered(self, node: int, numbers: Iterator[int]) -> list[Equation]:
        """Return the equations of a node; those of a launch with the next number."""
        if node not in self.launch_at:
            return self.nodes[node]
        number = next(numbers)
        return [e.replace(op=replace(e.op, launch=number)) for e in self.nodes[node]]  # type: ignore[type-var]

    def _needs(self) -> list[set[int]]:
        """Return, for each node, the nodes that must come before it. Effects keep their order."""
        producers: dict[Value, int] = {}
        for number, node in enumerate(self.nodes):
            producers.update((value, number) for equation in node for value in equation.outputs)
        needs: list[set[int]] = []
        last_effect: int | None = None
        for number, node in enumerate(self.nodes):
            needed = {producers[value] for equation in node for value in equation.inputs if value in producers}
            if any(equation.op.effect for equation in node):
                needed |= set() if last_effect is None else {last_effect}
                last_effect = number
            needs.append(needed)
        return needs

    def order(self) -> list[int]:
        """Return the nodes in order. Nodes of a cycle, and those that need them, are missing."""
        place = self._places()
        missing = [len(needed) for needed in self.needs]
        followers: list[list[int]] = [[] for _ in self.nodes]
        for number, needed in enumerate(self.needs):
            for other in needed:
                followers[other].append(number)
        ready = [(place[number], number) for number, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, number = heapq.heappop(ready)
            order.append(number)
            for follower in followers[number]:
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, (place[follower], follower))
        return order

    def _places(self) -> list[int]:
        """Return where each node should stand: at its own place, or at that of the first node that needs it."""
        places = list(range(len(self.nodes)))
        for number in range(len(self.nodes)):
            open_nodes = [number]
            while open_nodes:
                for other in self.needs[open_nodes.pop()]:
                    if places[other] > number:
                        places[other] = number
                        open_nodes.append(other)
        return places
