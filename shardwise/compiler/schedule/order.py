"""order: a program with the collectives of each launch next to each other, and otherwise nearly in its own order."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value


def order_by_launches(program: Program, launches: Sequence[Sequence[Equation]], numbers: Iterator[int]) -> Program:
    """Return the program with the collectives of each launch next to each other, with a launch number from `numbers`.

    A launch stands where its first collective stood, after all that its operands need. If two launches need each other,
    the collectives of one keep their own launches.
    """
    launches = list(launches)
    while launches:
        graph = _Graph(program, launches)
        order = graph.order()
        if len(order) == len(graph.nodes):
            number_of = {
                id(equation): number for launch, number in zip(launches, numbers, strict=False) for equation in launch
            }
            return program.with_equations(
                _with_launch(equation, number_of.get(id(equation))) for node in order for equation in graph.nodes[node]
            )
        waiting = set(range(len(graph.nodes))) - set(order)
        launches.remove(graph.nodes[max(waiting, key=lambda node: (graph.is_launch[node], len(graph.nodes[node])))])
    return program


def _with_launch(equation: Equation, number: int | None) -> Equation:
    if number is None:
        return equation
    return equation.replace(op=replace(equation.op, launch=number))  # type: ignore[type-var]


@final
class _Graph:
    """The equations of a program with their dependencies. A node is a launch, a group of barriers, or one equation.

    Attributes:
        nodes: the equations of each node.
        is_launch: whether each node is a launch.
    """

    def __init__(self, program: Program, launches: Sequence[Sequence[Equation]]):
        launch_of = {id(equation): launch for launch in launches for equation in launch}
        self.nodes: list[Sequence[Equation]] = []
        self.is_launch: list[bool] = []
        node_of: dict[int, int] = {}  # of launches, by id
        for group in issue_groups(program):
            launch = launch_of.get(id(group[0]))
            if launch is not None:
                if id(launch) in node_of:
                    continue
                node_of[id(launch)] = len(self.nodes)
            self.nodes.append(group if launch is None else launch)
            self.is_launch.append(launch is not None)
        self.needs = self._needs()

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
            needs.append(needed - {number})
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
        """Return where each node should stand: at its own place, or at that of the first launch that needs it."""
        places = list(range(len(self.nodes)))
        for number, is_launch in enumerate(self.is_launch):
            open_nodes = [number] if is_launch else []
            while open_nodes:
                for other in self.needs[open_nodes.pop()]:
                    if places[other] > number:
                        places[other] = number
                        open_nodes.append(other)
        return places
