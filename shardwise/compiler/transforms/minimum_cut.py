"""minimum_cut: the cheapest set of values from which given values can be computed.

This is a minimum cut in a graph whose vertices are values, computed by augmenting paths (Edmonds-Karp). The
implementation in scipy has 32-bit capacities, which numbers of bytes exceed.
"""

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

_Value = TypeVar("_Value", bound=Hashable)
_UNLIMITED = float("inf")
_SOURCE, _SINK = "source", "sink"


def minimum_cut(
    targets: Collection[_Value], operands: Mapping[_Value, Collection[_Value]], costs: Mapping[_Value, float]
) -> set[_Value]:
    """Return the cheapest set of values from which all `targets` can be computed.

    Among sets of equal cost, this is the set that leaves the least to compute.

    Args:
        targets: the values that are needed.
        operands: for each value that can be computed, its operands. A value without an entry can only be chosen.
        costs: for each value, the cost of choosing it.
    """
    capacity: dict[Hashable, dict[Hashable, float]] = {_SOURCE: {}, _SINK: {}}

    def connect(start: Hashable, end: Hashable, limit: float) -> None:
        capacity.setdefault(start, {})[end] = limit
        capacity.setdefault(end, {}).setdefault(start, 0)

    pending, reached = list(targets), set(targets)
    while pending:
        value = pending.pop()
        connect(("before", value), ("after", value), costs[value])
        if value not in operands:
            connect(_SOURCE, ("before", value), _UNLIMITED)
        for operand in operands.get(value, ()):
            connect(("after", operand), ("before", value), _UNLIMITED)
            if operand not in reached:
                reached.add(operand)
                pending.append(operand)
    for value in targets:
        connect(("after", value), _SINK, _UNLIMITED)
    while path := _augmenting_path(capacity):
        amount = min(capacity[start][end] for start, end in path)
        for start, end in path:
            capacity[start][end] -= amount
            capacity[end][start] += amount
    needed = _leading_to_sink(capacity)
    return {value for value in reached if ("after", value) in needed and ("before", value) not in needed}


def _augmenting_path(capacity: Mapping[Hashable, Mapping[Hashable, float]]) -> list[tuple[Hashable, Hashable]]:
    """Return the edges of a shortest path from source to sink with residual capacity; empty if there is none."""
    previous: dict[Hashable, Hashable] = {_SOURCE: _SOURCE}
    frontier: list[Hashable] = [_SOURCE]
    for vertex in frontier:  # grows during the loop
        for end, limit in capacity[vertex].items():
            if limit > 0 and end not in previous:
                previous[end] = vertex
                frontier.append(end)
    path: list[tuple[Hashable, Hashable]] = []
    vertex = _SINK
    while vertex != _SOURCE and vertex in previous:
        path.append((previous[vertex], vertex))
        vertex = previous[vertex]
    return path


def _leading_to_sink(capacity: Mapping[Hashable, Mapping[Hashable, float]]) -> set[Hashable]:
    """Return the vertices from which a path with residual capacity leads to the sink."""
    found: set[Hashable] = {_SINK}
    frontier: list[Hashable] = [_SINK]
    for vertex in frontier:  # grows during the loop
        for start in capacity[vertex]:
            if start not in found and capacity[start][vertex] > 0:
                found.add(start)
                frontier.append(start)
    return found
