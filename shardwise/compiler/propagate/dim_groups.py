"""Colours: dims that the ops of a program tie together. Pinning one dim to an axis makes its whole colour a candidate.

Two relations follow from factor rules. `dim_groups` joins dims that share a leading factor: layouts flow along it,
through reshapes too. `padding_classes` joins dims that share a factor which is the whole dim everywhere: these must
agree on their padded size, or shards would not line up.
"""

from collections.abc import Callable, Sequence
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.shardings.factors import FactorRule

Groups = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@final
class DimGroups:
    """Disjoint sets of dims that merge; `find` gives the number of a dim's set."""

    def __init__(self) -> None:
        self._first: dict[Value, int] = {}  # dims are numbered: those of one value follow each other
        self._parent: list[int] = []

    def find(self, value: Value, dim: int) -> int:
        parent = self._parent
        item = self._number(value) + dim
        while (above := parent[item]) != item:
            parent[item] = parent[above]  # the way gets shorter every time it is gone
            item = parent[item]
        return item

    def join(self, a: tuple[Value, int], b: tuple[Value, int]) -> None:
        self._parent[self.find(*a)] = self.find(*b)

    def _number(self, value: Value) -> int:
        found = self._first.get(value)
        if found is None:
            found = self._first[value] = len(self._parent)
            self._parent.extend(range(found, found + value.type.ndim))
        return found


def dim_groups(equations: Sequence[Equation]) -> DimGroups:
    """Dims joined where a layout can flow from one to the other."""
    return _joined(equations, lambda rule: rule.dims_by_leading_factor)


def padding_classes(equations: Sequence[Equation]) -> DimGroups:
    """Dims joined where pieces must line up, so that they share one padded size."""
    return _joined(equations, lambda rule: rule.dims_by_padding_factor)


def _joined(equations: Sequence[Equation], groups: Callable[[FactorRule], Groups]) -> DimGroups:
    sets = DimGroups()
    for equation in equations:
        values = (*equation.inputs, *equation.outputs)
        for _, places in groups(factor_rule(equation.op, tuple([value.type for value in equation.inputs]))):
            number, dim = places[0]
            first = (values[number], dim)
            for number, dim in places[1:]:
                sets.join((values[number], dim), first)
    return sets
