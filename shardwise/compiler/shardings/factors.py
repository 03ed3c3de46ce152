"""FactorRule: how the dims of an op's operands and results hang together.

    b m k, b k n -> b m n      with k summed: a matrix product
    (i j) k -> i (j k)         a reshape; dims in parentheses are compound, major factor first

A factor is one loop of the op. Cutting the op along a factor cuts every dim that has it. Kinds of factor: one that
passes through; one that is reduced (a result cut along it is partial); one that must stay whole (`whole`); one across
whose cuts the op's own `localize` reaches (`exchange`: a slice, a window, a running sum), and whose dims may differ in
size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

from shardwise.compiler.reduction import Reduction, reduction_named

Dims = tuple[tuple[int, ...], ...]  # for each dim, its factors, major to minor


@final
@dataclass(frozen=True)
class FactorRule:
    """Factors are numbered; `sizes[f]` is the extent of factor f, `reduce[f]` how it is reduced, if it is.

    `terms`: operands that are added to the sums. Where a summed factor that they lack is cut, they are terms too.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: tuple[int, ...]
    reduce: Mapping[int, Reduction] = field(default_factory=dict, hash=False)
    need_replication: frozenset[int] = frozenset()
    exchange: frozenset[int] = frozenset()
    addends: frozenset[int] = frozenset()

    @staticmethod
    def parse(text: str, sizes: Mapping[str, int], reduce: Mapping[str, str] | None = None) -> "FactorRule":
        """Parse a rule written as in this module's docstring.

        Args:
            text: the rule.
            sizes: the size of every factor, by name.
            reduce: the name of the reduction of every factor that is reduced ("sum", "max", …).
        """
        numbers = {name: number for number, name in enumerate(sizes)}
        left, _, right = text.partition("->")

        def dims(part: str) -> Dims:
            out: list[tuple[int, ...]] = []
            group: list[int] | None = None
            for word in part.replace("(", " ( ").replace(")", " ) ").split():
                if word == "(":
                    group = []
                elif word == ")":
                    out.append(tuple(group or ()))
                    group = None
                elif group is None:
                    out.append((numbers[word],))
                else:
                    group.append(numbers[word])
            return tuple(out)

        return FactorRule(
            tuple(dims(part) for part in left.split(",")) if left.strip() else (),
            tuple(dims(part) for part in right.split(",")),
            tuple(sizes.values()),
            {numbers[name]: reduction_named(by) for name, by in (reduce or {}).items()},
        )

    @staticmethod
    def pointwise(shape: Sequence[int], operands: int) -> "FactorRule":
        """Every operand and the result have all dims, in order."""
        dims = tuple((dim,) for dim in range(len(shape)))
        return FactorRule((dims,) * operands, (dims,), tuple(shape))

    @staticmethod
    def reducing(shape: Sequence[int], dims: Sequence[int], reduction: Reduction | None) -> "FactorRule":
        """One operand; the dims in `dims` are reduced, the rest pass through."""
        operand = tuple((dim,) for dim in range(len(shape)))
        kept = tuple((dim,) for dim in range(len(shape)) if dim not in dims)
        return FactorRule((operand,), (kept,), tuple(shape), dict.fromkeys(dims, reduction) if reduction else {})

    @staticmethod
    def reshaping(before: Sequence[int], after: Sequence[int]) -> "FactorRule":
        """The finest factors that two shapes of one array share: 8×4 → 2×16 is (i j) k -> i (j k).

        Where the cuts of the two shapes do not nest (6×4 → 4×6 past the common 2), the rest stays whole.
        """
        sizes: list[int] = []
        whole: list[int] = []
        left: list[list[int]] = [[] for _ in before]
        right: list[list[int]] = [[] for _ in after]
        a = b = 0
        rest_a, rest_b = (before[0] if before else 1), (after[0] if after else 1)

        def factor(size: int) -> int:
            sizes.append(size)
            return len(sizes) - 1

        if 0 in before:  # nothing to cut: every dim stays whole
            left, right = [[factor(size)] for size in before], [[factor(size)] for size in after]
            return FactorRule(
                (tuple(map(tuple, left)),),
                (tuple(map(tuple, right)),),
                tuple(sizes),
                need_replication=frozenset(range(len(sizes))),
            )
        while a < len(before) and b < len(after):
            common = math.gcd(rest_a, rest_b)
            if common != 1:
                left[a].append(factor(common))
                right[b].append(len(sizes) - 1)
                rest_a, rest_b = rest_a // common, rest_b // common
            elif rest_a != 1 and rest_b != 1:
                # The cuts do not nest: both sides stay whole until their products meet again.
                product_a, product_b = rest_a, rest_b
                for side, at, rest in ((left, a, rest_a), (right, b, rest_b)):
                    side[at].append(factor(rest))
                    whole.append(len(sizes) - 1)
                while product_a != product_b:
                    if product_a < product_b:
                        a += 1
                        product_a *= before[a]
                        left[a].append(factor(before[a]))
                    else:
                        b += 1
                        product_b *= after[b]
                        right[b].append(factor(after[b]))
                    whole.append(len(sizes) - 1)
                rest_a = rest_b = 1
            if rest_a == 1:
                a += 1
                rest_a = before[a] if a < len(before) else 1
            if rest_b == 1:
                b += 1
                rest_b = after[b] if b < len(after) else 1
        return FactorRule(
            (tuple(map(tuple, left)),), (tuple(map(tuple, right)),), tuple(sizes), need_replication=frozenset(whole)
        )

    def is_paddable(self, factors: tuple[int, ...]) -> bool:
        """Whether a dim of these factors may be padded inside the op; else the op needs its exact size."""
        return len(factors) == 1 and factors[0] not in self.compound and factors[0] not in self.need_replication

    def allows_sharding(self, cuts: Mapping[int, int]) -> bool:
        """Whether factors may be cut into so many pieces at once.

        In a compound dim pieces must be contiguous: a factor after another is cut, evenly, only where that one is cut
        into single elements. The first may be cut unevenly: its padding lies at the end of the dim.
        """
        for factors in self.compound_dims:
            split = True  # whether all before is in single elements
            for place, factor in enumerate(factors):
                size, count = self.sizes[factor], cuts.get(factor, 1)
                if count > 1 and not (split and count <= size and (place == 0 or size % count == 0)):
                    return False
                split = split and count == size
        return True

    def assign_axes(
        self, factors: tuple[int, ...], axes: tuple[str, ...], extents: Mapping[str, int]
    ) -> list[tuple[str, ...]]:
        """Which of the axes that cut a dim cut each of its factors, where `allows_sharding` is kept."""
        found: list[tuple[str, ...]] = []
        rest = axes
        for factor in factors:
            count = taken = 0
            while taken < len(rest) and self.sizes[factor] % ((count or 1) * extents[rest[taken]]) == 0:
                count = (count or 1) * extents[rest[taken]]
                taken += 1
            found.append(rest[:taken])
            rest = rest[taken:]
            if rest and (count or 1) != self.sizes[factor]:
                break
        if rest:  # the first factor is cut unevenly, and alone
            found = [axes]
        return [*found, *[()] * (len(factors) - len(found))]

    @cached_property
    def compound_dims(self) -> tuple[tuple[int, ...], ...]:
        """The factors of every dim that has several."""
        return tuple(dim for dims in (*self.operands, *self.results) for dim in dims if len(dim) > 1)

    @cached_property
    def compound(self) -> frozenset[int]:
        """Factors that share a dim with another, or meet such a dim elsewhere."""
        return frozenset(factor for dim in self.compound_dims for factor in dim)

    @cached_property
    def dims_by_leading_factor(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Each factor that can be cut along, and the dims that it leads: (number of the operand or result, dim)."""
        return self._led_by(self.leading)

    @cached_property
    def dims_by_padding_factor(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Each factor that is the whole of its dims, which are padded alike, and these dims."""
        return self._led_by(frozenset(range(len(self.sizes))) - self.compound - self.need_replication - self.exchange)

    def _led_by(self, wanted: frozenset[int]) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        found: dict[int, list[tuple[int, int]]] = {}
        for number, dims in enumerate((*self.operands, *self.results)):
            for dim, factors in enumerate(dims):
                if factors and factors[0] in wanted:
                    found.setdefault(factors[0], []).append((number, dim))
        return tuple((factor, tuple(places)) for factor, places in found.items())

    @cached_property
    def leading(self) -> frozenset[int]:
        """Factors that are major in every dim that has them: these can be cut along, whatever else is."""
        return frozenset(range(len(self.sizes))) - self.minor - self.need_replication

    @cached_property
    def minor(self) -> frozenset[int]:
        """Factors that come after another in some dim: they can be cut only where that one is in single elements."""
        return frozenset(factor for dim in self.compound_dims for factor in dim[1:]) - self.need_replication

    def dims_with(self, factor: int) -> list[tuple[int, int]]:
        """The dims that have a factor: (number of the operand or result, dim)."""
        return [
            (number, dim)
            for number, dims in enumerate((*self.operands, *self.results))
            for dim, factors in enumerate(dims)
            if factor in factors
        ]
