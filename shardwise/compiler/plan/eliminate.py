"""eliminate: the exact minimum of a sum of small cost tables, by variable elimination.

A variable has a number of labels. A table gives the cost of the labels of one or more variables together. Taking out
the variable whose neighbourhood is smallest, again and again, and then reading the labels back, finds the best labels
of all. Where a neighbourhood would grow past the limit, one of its variables is held at its label in `hint`: the result
is then the best among those that agree with the hint there, and so never worse than the hint itself.

Programs repeat themselves: layer after layer brings the same tables. Tables are compared by identity, and what was
worked out for some of them once is found again.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

Table = tuple[tuple[int, ...], np.ndarray]  # the variables, and their costs: one dim each
LIMIT = 300_000


@final
class IdentityCache:
    """What was worked out before, by the identity of the objects that it was worked out from."""

    def __init__(self) -> None:
        self._found: dict[Any, Any] = {}
        self._alive: list[Any] = []  # an object that is gone could lend its identity to another

    def get(self, key: Any, named: Sequence[Any], work: Callable[[], Any]) -> Any:
        """`work()`, done once for a key in which objects are named by their `id`."""
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = work()
            self._alive.append(named)
        return found


def eliminate(
    labels: Sequence[int],
    tables: Sequence[Table],
    hint: Callable[[], Sequence[int]],
    limit: int = LIMIT,
    cache: IdentityCache | None = None,
) -> list[int]:
    """The label of each variable; exact unless a variable had to be held. Ties go to the lowest label."""
    graph = _Graph(labels, cache or IdentityCache())
    for table in tables:
        graph.place(table)
    chosen = [0] * len(labels)
    held_at: Sequence[int] | None = None
    for variable, count in enumerate(labels):
        if count == 1:  # nothing to choose: it would only widen tables
            graph.fix(variable, 0)
    heap = [(graph.weight(variable), variable) for variable in range(len(labels)) if labels[variable] > 1]
    heapq.heapify(heap)
    taken: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    done = [count == 1 for count in labels]
    while heap:
        size, variable = heapq.heappop(heap)
        if done[variable]:
            continue
        now = graph.weight(variable)
        if now > size:  # it has gained neighbours since it was pushed
            heapq.heappush(heap, (now, variable))
        elif now > limit:
            held = max((variable, *graph.neighbours[variable]), key=lambda v: (len(graph.neighbours[v]), -v))
            held_at = hint() if held_at is None else held_at
            chosen[held] = held_at[held]
            done[held] = True
            lighter = graph.fix(held, held_at[held])
            for other in lighter | ({variable} - {held}):
                heapq.heappush(heap, (graph.weight(other), other))
        else:
            scope, best = graph.take(variable)
            taken.append((variable, scope, best))
            done[variable] = True
            for other in scope:
                heapq.heappush(heap, (graph.weight(other), other))
    for variable, scope, best in reversed(taken):
        chosen[variable] = int(best[tuple([chosen[other] for other in scope])])
    return chosen


@final
class _Graph:
    """The tables, by the variables that they touch."""

    def __init__(self, labels: Sequence[int], cache: IdentityCache):
        self.labels = labels
        self.cache = cache
        self.tables: list[dict[int, Table]] = [{} for _ in labels]
        self.neighbours: list[set[int]] = [set() for _ in labels]
        self._count = 0

    def place(self, table: Table) -> None:
        for variable in table[0]:
            self.tables[variable][self._count] = table
            if len(table[0]) > 1:
                self.neighbours[variable].update(table[0])
                self.neighbours[variable].discard(variable)
        self._count += 1

    def weight(self, variable: int) -> int:
        """The size of the table that taking this variable out would sum."""
        labels = self.labels
        return labels[variable] * math.prod([labels[other] for other in self.neighbours[variable]])

    def fix(self, variable: int, label: int) -> set[int]:
        """Leave `variable` one label, and every table without it; its neighbours until now are returned."""
        for key, (scope, costs) in self.tables[variable].items():
            if len(scope) == 1:
                continue
            dim = scope.index(variable)
            rest = (*scope[:dim], *scope[dim + 1 :])
            left = self.cache.get(("fix", id(costs), dim, label), [costs], lambda: costs.take(label, dim))  # noqa: B023
            for other in rest:
                self.tables[other][key] = (rest, left)
        return self._leave(variable)

    def take(self, variable: int) -> tuple[tuple[int, ...], np.ndarray]:
        """Minimise over `variable`: its neighbours, and its best label for each of their labels."""
        mine = self.tables[variable]
        scope = tuple(sorted(self.neighbours[variable]))
        place = {other: number for number, other in enumerate((variable, *scope))}
        placed = [(tuple([place[other] for other in table[0]]), table[1]) for table in mine.values()]
        shape = tuple([self.labels[other] for other in (variable, *scope)])
        key = ("take", shape, tuple([(dims, id(costs)) for dims, costs in placed]))
        best, least = self.cache.get(key, [costs for _, costs in placed], lambda: _minimised(shape, placed))
        for number, table in mine.items():
            for other in table[0]:
                if other != variable:
                    del self.tables[other][number]
        self._leave(variable)
        if scope:
            self.place((scope, least))
        return scope, best

    def _leave(self, variable: int) -> set[int]:
        left = self.neighbours[variable]
        for other in left:
            self.neighbours[other].discard(variable)
        self.tables[variable], self.neighbours[variable] = {}, set()
        return left


def _minimised(
    shape: tuple[int, ...], tables: Sequence[tuple[tuple[int, ...], np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Over dim 0 of the sum of tables, each with its dims at these places: where the minimum is, and the minimum."""
    total = np.zeros(shape)
    for dims, costs in tables:
        order = sorted(range(len(dims)), key=dims.__getitem__)
        spread = [1] * len(shape)
        for dim in dims:
            spread[dim] = shape[dim]
        total = total + costs.transpose(order).reshape(spread)
    return total.argmin(0), total.min(0)
