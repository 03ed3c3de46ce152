"""dim_groups: connected dims of a program, by union-find over factor rules.

`dim_groups` joins dims that share a leading factor: layouts propagate along it, even through reshapes. A pinned dim
makes its axes candidates for its whole group. `padding_classes` joins simple dims (of one factor) that share their
factor: they need the same padded size, so that their shards line up.
"""

from collections.abc import Callable, Sequence
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.shardings.factors import FactorDims, FactorRule


@final
class DimGroups:
    """Disjoint sets of dims (union-find); `find` returns the representative index of a dim's set."""

    def __init__(self) -> None:
        self._first: dict[Value, int] = {}  # the index of a value's first dim; the others follow
        self._parent: list[int] = []

    def copy(self) -> "DimGroups":
        """Return a copy, in which groups can be merged."""
        copied = DimGroups()
        copied._first, copied._parent = dict(self._first), list(self._parent)
        return copied

    def find(self, value: Value, dim: int) -> int:
        """Return the index of the group of a dim."""
        parent = self._parent
        item = self._number(value) + dim
        while (above := parent[item]) != item:
            parent[item] = parent[above]  # path halving
            item = parent[item]
        return item

    def join(self, a: tuple[Value, int], b: tuple[Value, int]) -> None:
        """Merge the groups of two dims."""
        self._parent[self.find(*a)] = self.find(*b)

    def _number(self, value: Value) -> int:
        first = self._first.get(value)
        if first is None:
            first = self._first[value] = len(self._parent)
            self._parent.extend(range(first, first + value.type.ndim))
        return first


def dim_groups(equations: Sequence[Equation]) -> DimGroups:
    """Return the groups of dims between which layouts propagate."""
    return _join_dims(equations, lambda rule: rule.dims_by_leading_factor)


def padding_classes(equations: Sequence[Equation]) -> DimGroups:
    """Return the groups of dims that need one padded size."""
    return _join_dims(equations, lambda rule: rule.dims_by_padding_factor)


def _join_dims(equations: Sequence[Equation], factor_dims: Callable[[FactorRule], FactorDims]) -> DimGroups:
    groups = DimGroups()
    for equation in equations:
        values = (*equation.inputs, *equation.outputs)
        for _, dims in factor_dims(factor_rule(equation.op, tuple([value.type for value in equation.inputs]))):
            number, dim = dims[0]
            first = (values[number], dim)
            for number, dim in dims[1:]:
                groups.join((values[number], dim), first)
    return groups
