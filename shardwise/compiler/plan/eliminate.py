"""eliminate: the exact minimum of a sum of small cost tables, by variable elimination.

A variable has a number of labels. A table gives the cost of the labels of one or more variables together. Taking out
the variable whose neighbourhood is smallest, again and again, and then reading the labels back, finds the best labels
of all. Where a neighbourhood would grow past the limit, one of its variables is held at its label in `hint`.
"""

import heapq
import math
from collections.abc import Sequence

import numpy as np

Table = tuple[tuple[int, ...], np.ndarray]  # the variables, and their costs: one dim each
LIMIT = 300_000


def eliminate(labels: Sequence[int], tables: Sequence[Table], hint: Sequence[int], limit: int = LIMIT) -> list[int]:
    """The label of each variable; exact unless a variable had to be held. Ties go to the lowest label."""
    touching: list[dict[int, Table]] = [{} for _ in labels]
    neighbours: list[set[int]] = [set() for _ in labels]
    number = 0

    def place(table: Table) -> None:
        nonlocal number
        for variable in table[0]:
            touching[variable][number] = table
            neighbours[variable].update(other for other in table[0] if other != variable)
        number += 1

    for table in tables:
        place(table)
    sizes = list(labels)

    def weight(variable: int) -> int:
        return sizes[variable] * math.prod(sizes[other] for other in neighbours[variable])

    heap = [(weight(variable), variable) for variable in range(len(labels))]
    heapq.heapify(heap)
    done = [False] * len(labels)
    taken: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    while heap:
        size, variable = heapq.heappop(heap)
        if done[variable]:
            continue
        now = weight(variable)
        if now > size:
            heapq.heappush(heap, (now, variable))
            continue
        if now > limit:
            _hold(max((variable, *neighbours[variable]), key=lambda v: (len(neighbours[v]), -v)), hint, touching, sizes)
            heapq.heappush(heap, (weight(variable), variable))
            continue
        scope = (variable, *sorted(neighbours[variable]))
        total = np.zeros([sizes[v] for v in scope])
        for mine in list(touching[variable].items()):
            total = total + _spread(mine[1], scope)
            for other in mine[1][0]:
                touching[other].pop(mine[0], None)
        best = total.argmin(0)
        taken.append((variable, scope[1:], best))
        done[variable] = True
        for other in scope[1:]:
            neighbours[other].discard(variable)
        if len(scope) > 1:
            place((scope[1:], total.min(0)))
            for other in scope[1:]:
                heapq.heappush(heap, (weight(other), other))
    chosen = [0] * len(labels)
    for variable, scope, best in reversed(taken):
        chosen[variable] = int(best[tuple(chosen[other] if sizes[other] > 1 else 0 for other in scope)])
    return [hint[v] if sizes[v] == 1 and labels[v] > 1 else chosen[v] for v in range(len(labels))]


def _hold(variable: int, hint: Sequence[int], touching: list[dict[int, Table]], sizes: list[int]) -> None:
    """Leave `variable` only its label in the hint."""
    for key, (scope, costs) in list(touching[variable].items()):
        table = (scope, np.take(costs, [hint[variable]], scope.index(variable)))
        for other in scope:
            touching[other][key] = table
    sizes[variable] = 1


def _spread(table: Table, scope: tuple[int, ...]) -> np.ndarray:
    """A table's costs with its dims in the places that `scope` gives them."""
    variables, costs = table
    order = sorted(range(len(variables)), key=lambda i: scope.index(variables[i]))
    shape = [1] * len(scope)
    for i in order:
        shape[scope.index(variables[i])] = costs.shape[i]
    return costs.transpose(order).reshape(shape)
