"""eliminate: the exact minimum of a sum of small cost tables, by variable elimination.

A variable takes one of several labels. A table holds a cost for each combination of labels of its variables. To
eliminate a variable, the tables that contain it are summed and minimized over it. The best labels are then read back in
reverse order. If every neighbourhood exceeds a limit, a variable is fixed at its label in `hint`. The result is then
optimal among the assignments that agree with the hint on the fixed variables, so it is never worse than the hint.

The order of variables decides how large the tables become. Variables with few neighbours are first. The others follow
by the entries of the tables between pairs of neighbours that eliminating them would add (weighted min-fill): the
smallest sum is often that of a variable whose elimination connects values that had nothing in common.

The layers of a model produce equal tables. Equal tables are one object, and intermediate results are cached by the
identity of the tables.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

Table = tuple[tuple[int, ...], np.ndarray]  # the variables, and the costs, with one dim per variable
LIMIT = 4_000_000  # the largest number of entries of a summed table
_LATE_LIMIT = 300_000  # the same, once different tables above this number have `_BUDGET` entries in all
_BUDGET = 50_000_000  # about a second
_SMALL = 64  # the number of entries below which the smallest summed table is first, whatever it connects
_LARGE = 2_000  # the number of entries from which a table is minimized label by label
_CACHE_BYTES = 1 << 29  # the bytes of cached results from which `trim` drops them


@final
class IdentityCache:
    """A cache whose keys contain the `id`s of objects. Its results are arrays, or tuples of arrays."""

    def __init__(self) -> None:
        self._bytes = 0
        self._numbers: dict[Hashable, int] = {}
        self._results: dict[Any, Any] = {}
        self._keyed: list[Any] = []  # keep keyed objects alive so that `id()` is not reused

    def number(self, key: Hashable) -> int:
        """Return a number that stands for a key, as a part of other keys: it has a faster hash."""
        return self._numbers.setdefault(key, len(self._numbers))

    def get(self, key: Hashable, keyed: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """Return the cached result of `compute()` for a key. `keyed` are the objects whose ids are in the key."""
        result = self._results.get(key)
        if result is None:
            result = self._results[key] = compute()
            self._keyed.append(keyed)
            self._bytes += sum([array.nbytes for array in (result if isinstance(result, tuple) else (result,))])
        return result

    def trim(self) -> None:
        """Drop all results if they are large. Objects that were results may then be freed."""
        if self._bytes > _CACHE_BYTES:
            self._results.clear()
            self._keyed.clear()
            self._bytes = 0


def eliminate(
    labels: Sequence[int],
    tables: Sequence[Table],
    hint: Callable[[], Sequence[int]],
    limit: int = LIMIT,
    cache: IdentityCache | None = None,
) -> list[int]:
    """Return the label of each variable that minimizes the sum of the tables. Ties go to the lowest label.

    Args:
        labels: the number of labels of each variable.
        tables: the cost tables.
        hint: computes a label for each variable; called only if a variable must be fixed.
        limit: the largest number of entries of a summed table.
        cache: a cache that may be shared between calls.
    """
    graph = _Graph(labels, cache or IdentityCache())
    for table in tables:
        graph.add(table)
    chosen = [0] * len(labels)
    hinted: Sequence[int] | None = None
    for variable, count in enumerate(labels):
        if count == 1:  # only one label: it would only add a dim to tables
            graph.fix(variable, 0)
    heap = [graph.priority(variable, limit) for variable in range(len(labels)) if labels[variable] > 1]
    heapq.heapify(heap)
    eliminated: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    done = [count == 1 for count in labels]
    while heap:
        priority = heapq.heappop(heap)
        variable = priority.variable
        if done[variable]:
            continue
        limit = graph.limit(limit)
        now = graph.priority(variable, limit)
        if now > priority:  # its neighbourhood has grown since it was pushed
            heapq.heappush(heap, now)
        elif now.entries > limit:
            # Fix the variable with the most neighbours, because that removes the most edges of the graph.
            fixed = max((variable, *graph.neighbours[variable]), key=lambda v: (len(graph.neighbours[v]), -v))
            hinted = hint() if hinted is None else hinted
            chosen[fixed] = hinted[fixed]
            done[fixed] = True
            shrunk = graph.fix(fixed, hinted[fixed])
            for other in shrunk | ({variable} - {fixed}):
                heapq.heappush(heap, graph.priority(other, limit))
        else:
            scope, best = graph.eliminate(variable)
            eliminated.append((variable, scope, best))
            done[variable] = True
            for other in scope:
                heapq.heappush(heap, graph.priority(other, limit))
    for variable, scope, best in reversed(eliminated):
        chosen[variable] = int(best[tuple([chosen[other] for other in scope])])
    return chosen


@final
class _Priority(NamedTuple):
    """The priority of eliminating a variable; the smallest is first.

    Attributes:
        added: the entries of the tables between pairs of neighbours that share none yet.
        entries: the entries of the summed table.
        variable: the variable.
    """

    added: float
    entries: int
    variable: int


@final
class _Graph:
    """The tables by their variables, and the neighbours of each variable, which share a table with it."""

    def __init__(self, labels: Sequence[int], cache: IdentityCache):
        self.labels = labels
        self.cache = cache
        self.tables: list[dict[int, Table]] = [{} for _ in labels]
        self.neighbours: list[set[int]] = [set() for _ in labels]
        self._count = 0
        self._large: dict[Hashable, int] = {}  # the entries of different large sums

    def add(self, table: Table) -> None:
        """Add a table."""
        for variable in table[0]:
            self.tables[variable][self._count] = table
            if len(table[0]) > 1:
                self.neighbours[variable].update(table[0])
                self.neighbours[variable].discard(variable)
        self._count += 1

    def limit(self, limit: int) -> int:
        """Return the number of entries that a summed table may have now. Equal tables, which are cached, count once."""
        return limit if sum(self._large.values()) < _BUDGET else min(limit, _LATE_LIMIT)

    def priority(self, variable: int, limit: int) -> _Priority:
        """Return the priority of eliminating this variable. Summed tables above the limit come last."""
        labels, neighbours = self.labels, self.neighbours[variable]
        entries = labels[variable] * math.prod([labels[other] for other in neighbours])
        if entries <= _SMALL or entries > limit:
            return _Priority(0 if entries <= limit else math.inf, entries, variable)
        added = 0
        for one in neighbours:
            connected = self.neighbours[one]
            added += labels[one] * sum([labels[other] for other in neighbours if other not in connected])
            added -= labels[one] ** 2  # `one` itself is not among its neighbours
        return _Priority(1 + added, entries, variable)

    def fix(self, variable: int, label: int) -> set[int]:
        """Fix a variable at one label, which removes it from all tables, and return its former neighbours."""
        for key, (scope, costs) in self.tables[variable].items():
            if len(scope) == 1:
                continue
            dim = scope.index(variable)
            rest = (*scope[:dim], *scope[dim + 1 :])
            cache_key = ("fix", id(costs), dim, label)
            fixed = self.cache.get(cache_key, [costs], lambda: costs.take(label, dim))  # noqa: B023
            for other in rest:
                self.tables[other][key] = (rest, fixed)
        return self._remove(variable)

    def eliminate(self, variable: int) -> tuple[tuple[int, ...], np.ndarray]:
        """Minimize over a variable. Return its neighbours, and its best label for each combination of their labels."""
        tables = self.tables[variable]
        scope = tuple(sorted(self.neighbours[variable]))
        dim_of = {other: dim for dim, other in enumerate((variable, *scope))}
        aligned = [(tuple([dim_of[other] for other in table[0]]), table[1]) for table in tables.values()]
        shape = tuple([self.labels[other] for other in (variable, *scope)])
        key = ("eliminate", shape, tuple([(dims, id(costs)) for dims, costs in aligned]))
        if (entries := math.prod(shape)) > _LATE_LIMIT:
            self._large[key] = entries
        best, least = self.cache.get(key, [costs for _, costs in aligned], lambda: _minimize(shape, aligned))
        for number, table in tables.items():
            for other in table[0]:
                if other != variable:
                    del self.tables[other][number]
        self._remove(variable)
        if scope:
            self.add((scope, least))
        return scope, best

    def _remove(self, variable: int) -> set[int]:
        """Remove a variable from the graph, and return its former neighbours."""
        neighbours = self.neighbours[variable]
        for other in neighbours:
            self.neighbours[other].discard(variable)
        self.tables[variable], self.neighbours[variable] = {}, set()
        return neighbours


def _minimize(
    shape: tuple[int, ...], tables: Sequence[tuple[tuple[int, ...], np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Sum tables and minimize over dim 0.

    Args:
        shape: the shape of the sum.
        tables: for each table, the dims of the sum that correspond to its dims, and its costs.

    Returns:
        The argmin and the minimum.
    """
    total = np.zeros(shape)
    for dims, costs in tables:
        broadcast_shape = [1] * len(shape)
        for dim in dims:
            broadcast_shape[dim] = shape[dim]
        is_ordered = all(dim < after for dim, after in pairwise(dims))
        ordered = costs if is_ordered else costs.transpose(sorted(range(len(dims)), key=dims.__getitem__))
        total += ordered.reshape(broadcast_shape)
    if total.size < _LARGE:
        return total.argmin(0), total.min(0)
    least, best = total[0], np.zeros(shape[1:], np.intp)
    for label in range(1, shape[0]):  # numpy's argmin along dim 0 would copy the transposed table
        np.copyto(best, label, where=total[label] < least)
        least = np.minimum(least, total[label])
    return best, least
