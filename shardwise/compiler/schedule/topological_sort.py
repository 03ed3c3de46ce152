"""Topological sort of a program, with the collectives of each launch adjacent, that stays close to program order."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import final

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.errors import ProgramError


def topological_sort(
    program: Program, launches: Sequence[Sequence[Equation]], launch_ids: Iterator[int], fallback: Program | None = None
) -> Program:
    """Return the program in topological order, with the collectives of each launch adjacent.

    A launch takes the place of its first collective, or an earlier one if a consumer is earlier, after all of its
    ancestors. If launches depend on each other, one of them is split into single collectives.

    Args:
        program: the program. Equations may stand before the producers of their operands.
        launches: the collectives of each launch.
        launch_ids: the ids of launches.
        fallback: the program without control dependencies, which is sorted instead if these form a cycle.

    Raises:
        ProgramError: if equations form a cycle.
    """
    kept = list(launches)
    while True:
        graph = _Graph(program, kept)
        order = graph.order()
        if len(order) == len(graph.nodes):
            nodes, launch_at = graph.nodes, graph.launch_at
            sorted_nodes = [graph.with_launch_id(i, launch_ids) if i in launch_at else nodes[i] for i in order]
            return program.with_equations(chain.from_iterable(sorted_nodes))
        unsorted = set(range(len(graph.nodes))) - set(order)
        blocked = [launch for node, launch in graph.launch_at.items() if node in unsorted]
        if not blocked and fallback is not None:
            return topological_sort(fallback, launches, launch_ids)
        if not blocked:
            raise ProgramError(f"{program.name}: equations form a cycle")
        kept.remove(max(blocked, key=len))


@final
class _Graph:
    """The equations of a program with their dependencies. A node is a launch, a group of barriers, or one equation.

    Attributes:
        nodes: the equations of each node.
        launch_at: the launches, by their node.
    """

    def __init__(self, program: Program, launches: Sequence[Sequence[Equation]]):
        launch_of = {equation.outputs[0]: index for index, launch in enumerate(launches) for equation in launch}
        self.nodes: list[list[Equation]] = list(issue_groups(program))
        self.launch_at: dict[int, Sequence[Equation]] = {}
        if launch_of:
            self._merge_launches(launch_of, launches)
        self.inputs = program.inputs
        self._blocked: set[int] = set()  # nodes of cycles and their descendants, as far as they are found

    def _merge_launches(self, launch_of: Mapping[Value, int], launches: Sequence[Sequence[Equation]]) -> None:
        """Merge the nodes of each launch. `launch_of` has the index of the launch of each result."""
        groups, self.nodes = self.nodes, []
        node_of: dict[int, int] = {}  # by the index of the launch
        for group in groups:
            outputs = group[0].outputs
            index = launch_of.get(outputs[0]) if outputs else None
            if index is None:
                self.nodes.append(group)
            elif index in node_of:
                self.nodes[node_of[index]] += group
            else:
                node_of[index] = len(self.nodes)
                self.launch_at[len(self.nodes)] = launches[index]
                self.nodes.append(group)

    def with_launch_id(self, node: int, launch_ids: Iterator[int]) -> list[Equation]:
        """Return the equations of a launch, with the next id."""
        launch = next(launch_ids)
        return [e.replace(op=replace(e.op, launch=launch)) for e in self.nodes[node]]  # type: ignore[type-var]

    def order(self) -> list[int]:
        """Return the nodes in topological order. Nodes of a cycle, and their descendants, are missing.

        A node keeps its place, after the ancestors that stand behind it. Most nodes have none.
        """
        order: list[int] = []
        sorted_nodes = [False] * len(self.nodes)
        defined = set(self.inputs)  # and the results of sorted nodes
        last_effect = -1  # the last sorted node with an effect
        effects = self._effects
        for start, equations in enumerate(self.nodes):
            if sorted_nodes[start]:
                continue
            if start not in effects and len(equations) == 1 and defined.issuperset(equations[0].inputs):  # most nodes
                order.append(start)
                sorted_nodes[start] = True
                defined.update(equations[0].outputs)
                continue
            is_ready = all([defined.issuperset(equation.inputs) for equation in equations])
            is_ready = is_ready and (start not in effects or effects[start] <= last_effect)
            for node in (start,) if is_ready else self._sorted_ancestors(start, sorted_nodes):
                order.append(node)
                sorted_nodes[node] = True
                for equation in self.nodes[node]:
                    defined.update(equation.outputs)
                if node in effects:
                    last_effect = node
        return order

    def _sorted_ancestors(self, node: int, sorted_nodes: Sequence[bool]) -> list[int]:
        """Return a node and its ancestors that are not sorted yet, in topological order, without cycles."""
        missing: dict[int, int] = {}
        successors: dict[int, list[int]] = {}
        stack = [node]
        while stack:
            current = stack.pop()
            if current in missing:
                continue
            if current in self._blocked:
                missing[current] = 1
                continue
            before = [other for other in self._predecessors(current) if not sorted_nodes[other]]
            missing[current] = len(before)
            for other in before:
                successors.setdefault(other, []).append(current)
            stack += before
        ready = [current for current, count in missing.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            current = heapq.heappop(ready)
            order.append(current)
            for successor in successors.get(current, ()):
                missing[successor] -= 1
                if not missing[successor]:
                    heapq.heappush(ready, successor)
        self._blocked.update(current for current, count in missing.items() if count)
        return order

    def _predecessors(self, node: int) -> list[int]:
        """Return the direct predecessors of a node, one for each operand."""
        producers, effect = self._producers, self._effects.get(node, -1)
        values = [value for equation in self.nodes[node] for value in equation.inputs]
        before = [producers[value] for value in values if value in producers]
        return before if effect < 0 else [*before, effect]

    @cached_property
    def _producers(self) -> dict[Value, int]:
        """The node that defines each value, except for inputs."""
        return {
            value: index for index, node in enumerate(self.nodes) for equation in node for value in equation.outputs
        }

    @cached_property
    def _effects(self) -> dict[int, int]:
        """The nodes with effects, which keep their order: each with the one before it, or -1."""
        nodes = [index for index, node in enumerate(self.nodes) for equation in node if equation.op.effect]
        nodes = list(dict.fromkeys(nodes))
        return dict(zip(nodes, (-1, *nodes), strict=False))
