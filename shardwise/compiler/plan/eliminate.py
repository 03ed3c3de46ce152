"""eliminate: the exact minimum of a sum of small cost tables, by variable elimination.

A variable has a number of labels. A table gives the cost of the labels of one or more variables together. Taking out
the variable whose neighbourhood is smallest, again and again, and then reading the labels back, finds the best labels
of all. Where a neighbourhood would grow past the limit, one of its variables is held at its label in `hint`: the result
is then the best among those that agree with the hint there, and so never worse than the hint itself.
"""

import heapq
import math
from collections.abc import Sequence
from typing import final

import numpy as np

Table = tuple[tuple[int, ...], np.ndarray]  # the variables, and their costs: one dim each
LIMIT = 300_000


def eliminate(labels: Sequence[int], tables: Sequence[Table], hint: Sequence[int], limit: int = LIMIT) -> list[int]:
    """The label of each variable; exact unless a variable had to be held. Ties go to the lowest label."""
    graph = _Graph(labels)
    for table in tables:
        graph.place(table)
    chosen = [0] * len(labels)
    for variable, count in enumerate(labels):
        if count == 1:  # nothing to choose: it would only widen tables
            graph.fix(variable, 0)
    heap = [(graph.weight(variable), variable) for variable in range(len(labels)) if labels[variable] > 1]
    heapq.heapify(heap)
    taken: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    done = {variable for variable, count in enumerate(labels) if count == 1}
    while heap:
        size, variable = heapq.heappop(heap)
        if variable in done:
            continue
        now = graph.weight(variable)
        if now > size:  # it has gained neighbours since it was pushed
            heapq.heappush(heap, (now, variable))
        elif now > limit:
            held = max((variable, *graph.neighbours[variable]), key=lambda v: (len(graph.neighbours[v]), -v))
            chosen[held] = hint[held]
            done.add(held)
            lighter = graph.fix(held, hint[held])
            for other in lighter | ({variable} - {held}):
                heapq.heappush(heap, (graph.weight(other), other))
        else:
            scope, best = graph.take(variable)
            taken.append((variable, scope, best))
            done.add(variable)
            for other in scope:
                heapq.heappush(heap, (graph.weight(other), other))
    for variable, scope, best in reversed(taken):
        chosen[variable] = int(best[tuple(chosen[other] for other in scope)])
    return chosen


@final
class _Graph:
    """The tables, by the variables that they touch."""

    def __init__(self, labels: Sequence[int]):
        self.labels = labels
        self.tables: list[dict[int, Table]] = [{} for _ in labels]
        self.neighbours: list[set[int]] = [set() for _ in labels]
        self._count = 0

    def place(self, table: Table) -> None:
        for variable in table[0]:
            self.tables[variable][self._count] = table
            self.neighbours[variable].update(other for other in table[0] if other != variable)
        self._count += 1

    def weight(self, variable: int) -> int:
        """The size of the table that taking this variable out would sum."""
        return self.labels[variable] * math.prod(self.labels[other] for other in self.neighbours[variable])

    def fix(self, variable: int, label: int) -> set[int]:
        """Leave `variable` one label, and every table without it; its neighbours until now are returned."""
        for key, (scope, costs) in self.tables[variable].items():
            rest = tuple(other for other in scope if other != variable)
            table = (rest, np.take(costs, label, scope.index(variable)))
            for other in rest:
                self.tables[other][key] = table
        return self._leave(variable)

    def take(self, variable: int) -> tuple[tuple[int, ...], np.ndarray]:
        """Minimise over `variable`: its neighbours, and its best label for each of their labels."""
        mine = dict(self.tables[variable])
        scope = tuple(sorted(self.neighbours[variable]))
        total = np.zeros([self.labels[v] for v in (variable, *scope)])
        for key, table in mine.items():
            total = total + _spread(table, (variable, *scope))
            for other in table[0]:
                del self.tables[other][key]
        self._leave(variable)
        if scope:
            self.place((scope, total.min(0)))
        return scope, total.argmin(0)

    def _leave(self, variable: int) -> set[int]:
        left = self.neighbours[variable]
        for other in left:
            self.neighbours[other].discard(variable)
        self.tables[variable], self.neighbours[variable] = {}, set()
        return left


def _spread(table: Table, scope: tuple[int, ...]) -> np.ndarray:
    """A table's costs with its dims in the places that `scope` gives them."""
    variables, costs = table
    order = sorted(range(len(variables)), key=lambda i: scope.index(variables[i]))
    shape = [1] * len(scope)
    for i in order:
        shape[scope.index(variables[i])] = costs.shape[i]
    return costs.transpose(order).reshape(shape)
