"""FactorRule: the factors of the dims of an op's operands and results (Shardy: sharding rule).

    b m k, b k n -> b m n      with k summed: a matrix product
    (i j) k -> i (j k)         a reshape; dims in parentheses are compound, major factor first

A factor is one loop of the op. Sharding the op along a factor shards every dim that has the factor. There are four
kinds: pass-through factors; reduction factors, which make the result partial if they are sharded; factors that need
replication; and exchange factors, across whose shards the op's `localize` communicates (a slice, a window, a cumulative
sum). The dims of an exchange factor may differ in size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

from shardwise.compiler.reduction import Reduction, reduction_named
from shardwise.compiler.shardings.reshape_factors import reshape_factors

Dims = tuple[tuple[int, ...], ...]  # for each dim, its factors, major to minor
FactorDims = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  # factor → (operand or result, dim) pairs


@final
@dataclass(frozen=True)
class FactorRule:
    """The factors of an op, as indices from 0.

    Attributes:
        operands: for each operand, the factors of each dim.
        results: for each result, the factors of each dim.
        sizes: the size of each factor.
        reduce: the reduction of each reduction factor. Results that have the factor are not reduced along it.
        need_replication: the factors that cannot be sharded.
        exchange: the factors across whose shards the op communicates.
        addends: operands that are added to the sums over reduction factors (scatter-add). If a reduction factor that
            they do not have is sharded, they are partial too.
        typed_as: for a factor of a result that needs replication, a factor of an operand: in types, the result's dims
            have the Explicit axes of the operand's dims (a slice at a traced index).
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: tuple[int, ...]
    reduce: Mapping[int, Reduction] = field(default_factory=dict, hash=False)
    need_replication: frozenset[int] = frozenset()
    exchange: frozenset[int] = frozenset()
    addends: frozenset[int] = frozenset()
    typed_as: Mapping[int, int] = field(default_factory=dict, hash=False)

    @staticmethod
    def parse(text: str, sizes: Mapping[str, int], reduce: Mapping[str, str] | None = None) -> "FactorRule":
        """Parse a rule written as in this module's docstring.

        Args:
            text: the rule.
            sizes: the size of every factor, by name.
            reduce: the name of the reduction of every factor that is reduced ("sum", "max", …).
        """
        numbers = {name: index for index, name in enumerate(sizes)}
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
        """Return the rule of an elementwise op, whose operands and result have one shape."""
        dims = tuple((dim,) for dim in range(len(shape)))
        return FactorRule((dims,) * operands, (dims,), tuple(shape))

    @staticmethod
    def reducing(shape: Sequence[int], dims: Sequence[int], reduction: Reduction | None) -> "FactorRule":
        """Return the rule of an op that reduces `dims` of its operand."""
        operand = tuple((dim,) for dim in range(len(shape)))
        result = tuple((dim,) for dim in range(len(shape)) if dim not in dims)
        return FactorRule((operand,), (result,), tuple(shape), dict.fromkeys(dims, reduction) if reduction else {})

    @staticmethod
    def reshaping(before: Sequence[int], after: Sequence[int]) -> "FactorRule":
        """Return the rule of a reshape, with the finest factors that both shapes share.

        8×4 → 2×16 is (i j) k -> i (j k) with i=2, j=4, k=4. If the dims do not nest (6×4 → 4×6 after the common 2),
        their factors need replication.
        """
        factors = reshape_factors(before, after)
        return FactorRule((factors.before,), (factors.after,), factors.sizes, need_replication=factors.need_replication)

    def vmapped(self, dims: Sequence[int | None], size: int) -> "FactorRule":
        """Return the rule of a vmapped op: a new factor at `dims` of the operands, and at dim 0 of all results."""
        new_factor = (len(self.sizes),)
        operands = tuple(
            factors if dim is None else (*factors[:dim], new_factor, *factors[dim:])
            for factors, dim in zip(self.operands, dims, strict=True)
        )
        results = tuple((new_factor, *factors) for factors in self.results)
        return FactorRule(operands, results, (*self.sizes, size), self.reduce, self.need_replication, self.exchange)

    def is_paddable(self, factors: tuple[int, ...]) -> bool:
        """Return whether the op works on padding in a dim of these factors. Otherwise it needs the exact size."""
        return len(factors) == 1 and factors[0] not in self.compound and factors[0] not in self.need_replication

    def allows_sharding(self, counts: Mapping[int, int]) -> bool:
        """Return whether these factors may be sharded into these numbers of shards at the same time.

        The shards of a compound dim must be contiguous. So a minor factor can be sharded only evenly, and only if all
        factors before it are fully sharded, into single elements. The first factor may be sharded unevenly, because its
        padding is at the end of the dim.

        Args:
            counts: the number of shards of each sharded factor.
        """
        for factors in self.compound_dims:
            fully_sharded = True  # all factors before this one
            for position, factor in enumerate(factors):
                size, count = self.sizes[factor], counts.get(factor, 1)
                if count > 1 and not (fully_sharded and count <= size and (position == 0 or size % count == 0)):
                    return False
                fully_sharded = fully_sharded and count == size
        return True

    def assign_axes(
        self, factors: tuple[int, ...], axes: tuple[str, ...], extents: Mapping[str, int]
    ) -> list[tuple[str, ...]]:
        """Distribute the axes that shard a dim over its factors, as `allows_sharding` permits.

        Args:
            factors: the factors of the dim.
            axes: the axes that shard the dim, major first.
            extents: the size of each axis.
        """
        assigned: list[tuple[str, ...]] = []
        rest = axes
        for factor in factors:
            count, used = 1, 0
            while used < len(rest) and self.sizes[factor] % (count * extents[rest[used]]) == 0:
                count *= extents[rest[used]]
                used += 1
            assigned.append(rest[:used])
            rest = rest[used:]
            if rest and count != self.sizes[factor]:
                break
        if rest:  # only the first factor is sharded, unevenly
            assigned = [axes]
        return [*assigned, *[()] * (len(factors) - len(assigned))]

    @cached_property
    def compound_dims(self) -> tuple[tuple[int, ...], ...]:
        """The factors of every compound dim, of operands and results."""
        return tuple(dim for dims in (*self.operands, *self.results) for dim in dims if len(dim) > 1)

    @cached_property
    def compound(self) -> frozenset[int]:
        """The factors that share a dim with another factor in some operand or result."""
        return frozenset(factor for dim in self.compound_dims for factor in dim)

    @cached_property
    def replicated_in_results(self) -> frozenset[int]:
        """The factors of results that need replication and that types along Explicit axes do not shard either."""
        of_results = {factor for dims in self.results for dim in dims for factor in dim}
        return (self.need_replication & of_results) - self.typed_as.keys()

    @cached_property
    def dims_by_leading_factor(self) -> FactorDims:
        """Each leading factor, with the dims that it leads, as (index of the operand or result, dim)."""
        return self._dims_starting_with(self.leading)

    @cached_property
    def dims_by_padding_factor(self) -> FactorDims:
        """Each factor that is alone in all its dims, with these dims, which need the same padded size."""
        simple = frozenset(range(len(self.sizes))) - self.compound - self.need_replication - self.exchange
        return self._dims_starting_with(simple)

    def _dims_starting_with(self, first: frozenset[int]) -> FactorDims:
        """Return each of these factors with the dims that it leads."""
        dims_of: dict[int, list[tuple[int, int]]] = {}
        for index, dims in enumerate((*self.operands, *self.results)):
            for dim, factors in enumerate(dims):
                if factors and factors[0] in first:
                    dims_of.setdefault(factors[0], []).append((index, dim))
        return tuple((factor, tuple(dims)) for factor, dims in dims_of.items())

    @cached_property
    def leading(self) -> frozenset[int]:
        """The factors that are major in every dim that has them, which can be sharded independently of others."""
        return frozenset(range(len(self.sizes))) - self.minor - self.need_replication

    @cached_property
    def minor(self) -> frozenset[int]:
        """The factors that follow another factor in some dim, and can be sharded only if that one is fully sharded."""
        return frozenset(factor for dim in self.compound_dims for factor in dim[1:]) - self.need_replication

    def dims_with(self, factor: int) -> list[tuple[int, int]]:
        """Return the dims that have a factor, as (index of the operand or result, dim)."""
        return [
            (index, dim)
            for index, dims in enumerate((*self.operands, *self.results))
            for dim, factors in enumerate(dims)
            if factor in factors
        ]
