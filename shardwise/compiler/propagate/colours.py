"""Colours: dims that the ops of a program tie together. Pinning one dim to an axis makes its whole colour a candidate.

Two ties are drawn from factor rules. `colours` joins dims that share a leading factor: layouts flow along it, through
reshapes too. `padding_classes` joins dims that share a factor which is the whole dim everywhere: these must agree on
their padded size, or pieces would not line up.
"""

from collections.abc import Callable
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.shardings.factors import FactorRule

Dim = tuple[Value, int]


@final
class DimSets:
    """Disjoint sets of dims that merge; `find` gives a dim's representative."""

    def __init__(self) -> None:
        self._parent: dict[Dim, Dim] = {}

    def find(self, value: Value, dim: int) -> Dim:
        item = root = (value, dim)
        while (above := self._parent.get(root, root)) != root:
            root = above
        while item != root:
            self._parent[item], item = root, self._parent[item]
        return root

    def join(self, a: Dim, b: Dim) -> None:
        root = self.find(*b)
        if (leaf := self.find(*a)) != root:
            self._parent[leaf] = root


def colours(program: Program) -> DimSets:
    """Dims joined where a layout can flow from one to the other."""
    return _joined(program, lambda rule, factors: bool(factors) and factors[0] in rule.leading)


def padding_classes(program: Program) -> DimSets:
    """Dims joined where pieces must line up, so that they share one padded size."""
    return _joined(program, is_padded_alike)


def is_padded_alike(rule: FactorRule, factors: tuple[int, ...]) -> bool:
    """Whether a dim of these factors may be padded inside the op; else the op needs its exact size."""
    return len(factors) == 1 and factors[0] not in rule.compound and factors[0] not in rule.whole


def _joined(program: Program, ties: Callable[[FactorRule, tuple[int, ...]], bool]) -> DimSets:
    sets = DimSets()
    for equation in program.equations:
        rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
        first: dict[int, Dim] = {}
        for values, tables in ((equation.inputs, rule.operands), (equation.outputs, rule.results)):
            for value, dims in zip(values, tables, strict=True):
                for dim, factors in enumerate(dims):
                    if ties(rule, factors):
                        sets.join((value, dim), first.setdefault(factors[0], (value, dim)))
    return sets
