"""Rules that users write for `custom_partitioning`: how the dims of a function's operands and results hang together.

    "b m k, b k n -> b m n"     with `reduction_factors=("k",)`: a matrix product
    "... i -> ... i"            `...` stands for any number of leading dims, the same ones wherever it is; `...1` for
                                others
    "(i j) k -> i (j k)"        with `i=2, j=4`: dims of several factors, whose sizes are given where no dim shows them

The text is read by name and for any rank. `factor_rule` makes of it the rule that the planner reads, for certain types.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import Dims, FactorRule

BATCHING = "…"  # in an ArrayMapping, leading dims; "…1" others


@final
class CompoundFactor(tuple[str, ...]):
    """A dim of several factors, the first major: `CompoundFactor("i", "j")`."""

    def __new__(cls, *factors: str) -> "CompoundFactor":
        if len(factors) < 2:
            raise ValueError(f"CompoundFactor: {factors} is not several factors: a dim of one is its name alone")
        for factor in factors:
            _check_name("CompoundFactor", factor)
        return super().__new__(cls, factors)


@final
class ArrayMapping(tuple[Any, ...]):
    """The dims of one array: names of factors, CompoundFactors, and first, if any, `BATCHING`."""

    def __new__(cls, *dims: Any) -> "ArrayMapping":
        for place, dim in enumerate(dims):
            if isinstance(dim, str) and dim.startswith(BATCHING):
                if place:
                    raise ValueError(
                        f"ArrayMapping: `...` stands for leading dims, and in {dims} others come before it"
                    )
            elif not isinstance(dim, CompoundFactor):
                _check_name("ArrayMapping", dim)
        return super().__new__(cls, dims)


@final
class SdyShardingRule:
    """The factors of every operand and result, by name; the kinds of those that do not simply pass through; and the
    sizes of those that no dim shows."""

    def __init__(
        self,
        operand_mappings: Sequence[Any],
        result_mappings: Sequence[Any],
        *,
        reduction_factors: tuple[str, ...] = (),
        need_replication_factors: tuple[str, ...] = (),
        permutation_factors: tuple[str, ...] = (),
        **factor_sizes: int,
    ):
        self.operand_mappings = tuple(ArrayMapping(*dims) for dims in operand_mappings)
        self.result_mappings = tuple(ArrayMapping(*dims) for dims in result_mappings)
        self.reduction_factors = reduction_factors
        self.need_replication_factors = need_replication_factors
        self.permutation_factors = permutation_factors
        self.factor_sizes = factor_sizes
        self._check()

    def _check(self) -> None:
        shown: dict[str, bool] = {}  # whether a dim is this factor alone, and so shows its size
        for dim in (dim for dims in (*self.operand_mappings, *self.result_mappings) for dim in dims):
            for factor in (dim,) if isinstance(dim, str) else dim:
                shown[factor] = shown.get(factor, False) or isinstance(dim, str)
        for factor, size in self.factor_sizes.items():
            if type(size) is not int or size < 1:
                raise TypeError(f"sharding_rule: the size of a factor is an integer, and {factor!r} has {size!r}")
            if factor not in shown:
                raise ValueError(f"sharding_rule: a size is given for {factor!r}, which is no factor of the rule")
            if shown[factor]:
                raise ValueError(f"sharding_rule: a dim is {factor!r} alone and shows its size: do not give it")
        for factor, is_shown in shown.items():
            if not is_shown and factor not in self.factor_sizes:
                raise ValueError(f"sharding_rule: no dim is {factor!r} alone: give its size, `{factor}=…`")
        kinds: dict[str, str] = {}
        for kind in ("reduction_factors", "need_replication_factors", "permutation_factors"):
            factors = getattr(self, kind)
            if not isinstance(factors, tuple):
                raise TypeError(f"sharding_rule: {kind} must be a tuple of names, not {factors!r}")
            for factor in factors:
                if factor not in shown:
                    raise ValueError(f"sharding_rule: {kind} has {factor!r}, which is no factor of the rule")
                if factor in kinds:
                    raise ValueError(
                        f"sharding_rule: {factor!r} is in {kinds[factor]} and in {kind}: it is of one kind"
                    )
                kinds[factor] = kind

    def __repr__(self) -> str:
        sides = (", ".join(map(_text, values)) for values in (self.operand_mappings, self.result_mappings))
        return f"SdyShardingRule({' -> '.join(sides)!r})"


def parse_rule(text: str, **options: Any) -> SdyShardingRule:
    """The rule that is written so; `options` are those of SdyShardingRule."""
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise ValueError(f"sharding_rule {text!r}: needs one `->`, with the operands before and the results after it")
    return SdyShardingRule(_mappings(text, left), _mappings(text, right), **options)


def _mappings(rule: str, side: str) -> list[ArrayMapping]:
    """The arrays on one side of a rule; where nothing is written, one without dims."""
    found: list[list[Any]] = [[]]
    group: list[str] | None = None
    for word in re.findall(r"\.\.\.\d*|\w+|\S", side):
        if word == "(" and group is None:
            group = []
        elif word == ")" and group is not None:
            found[-1].append(CompoundFactor(*group))
            group = None
        elif word == "," and group is None:
            found.append([])
        elif word.startswith("...") and group is None:
            found[-1].append(BATCHING + word[3:])
        elif re.fullmatch(r"[^\W\d_]\w*", word):
            (found[-1] if group is None else group).append(word)
        else:
            raise ValueError(
                f"sharding_rule {rule!r}: {word!r} cannot stand there. A rule has names of factors, `...`, and "
                "parentheses around the factors of one dim; arrays are set apart by commas."
            )
    if group is not None:
        raise ValueError(f"sharding_rule {rule!r}: a parenthesis is not closed")
    return [ArrayMapping(*dims) for dims in found]


def factor_rule(rule: SdyShardingRule | None, program: Program, by_hand: bool) -> FactorRule:
    """The rule for a function that is this program; without one, all stays whole.

    `by_hand`: what runs on pieces is written for pieces, and may reach across the cuts. Else it is the function itself,
    which is right along factors that pass through and, summed, along those that are reduced.
    """
    if rule is None:
        return _all_whole(program.in_types, program.out_types)
    return _Reader(rule, program, by_hand).read()


def _all_whole(operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> FactorRule:
    sizes: list[int] = []

    def dims(type: ArrayType) -> Dims:
        sizes.extend(type.shape)
        return tuple((number,) for number in range(len(sizes) - type.ndim, len(sizes)))

    left, right = (tuple(dims(type) for type in types) for types in (operands, results))
    return FactorRule(left, right, tuple(sizes), whole=frozenset(range(len(sizes))))


class _Reader:
    """A rule, read for arrays of certain types."""

    def __init__(self, rule: SdyShardingRule, program: Program, by_hand: bool):
        self.rule = rule
        self.program = program
        self.by_hand = by_hand
        self.types = (*program.in_types, *program.out_types)
        self.count = len(program.inputs)
        self.leading: dict[str, int] = {}  # how many dims each `...` stands for
        self.values = [
            *self._side("operand", rule.operand_mappings, program.in_types),
            *self._side("result", rule.result_mappings, program.out_types),
        ]
        self.sizes = dict(rule.factor_sizes)
        self.uneven: set[str] = set()  # factors whose dims differ in size
        self._measure()

    def _side(
        self, what: str, mappings: Sequence[ArrayMapping], types: Sequence[ArrayType]
    ) -> list[list[tuple[str, ...]]]:
        """For each dim of each array the names of its factors; those that `...` stands for have names of their own."""
        if mappings == (ArrayMapping(),) and not types:
            return []
        if len(mappings) != len(types):
            raise ValueError(f"{self.rule}: it has {len(mappings)} {what}s, and the function has {len(types)}")
        found = []
        for number, (mapping, type) in enumerate(zip(mappings, types, strict=True)):
            dims = [(dim,) if isinstance(dim, str) else tuple(dim) for dim in mapping]
            if mapping and isinstance(mapping[0], str) and mapping[0].startswith(BATCHING):
                group = mapping[0].removeprefix(BATCHING) or "0"
                more = type.ndim - len(dims) + 1
                if more >= 0 and self.leading.setdefault(group, more) != more:
                    raise ValueError(
                        f"{self.rule}: `...` stands for {self.leading[group]} dims elsewhere, and for {more} in {what} "
                        f"{number}, {type}"
                    )
                dims[:1] = [(f"{BATCHING}{group}_{place}",) for place in range(more)]
            if len(dims) != type.ndim:
                raise ValueError(f"{self.rule}: {what} {number} has {len(dims)} dims there, and is {type}")
            found.append(dims)
        return found

    def _measure(self) -> None:
        """The size of every factor, on which its dims agree."""
        for dims, type in zip(self.values, self.types, strict=True):
            for factors, size in zip(dims, type.shape, strict=True):
                if len(factors) == 1 and self.sizes.setdefault(factors[0], size) != size:
                    self.uneven.add(factors[0])
                    self.sizes[factors[0]] = min(size, self.sizes[factors[0]])
        kinds = (*self.rule.need_replication_factors, *self.rule.permutation_factors)
        if wrong := [factor for factor in self.sizes if factor in self.uneven and factor not in kinds]:
            sizes = {
                type.shape[d] for dims, type in self._pairs() for d, mine in enumerate(dims) if mine == (wrong[0],)
            }
            raise ValueError(
                f"{self.rule}: dims of {_shown(wrong[0])} have the sizes {' and '.join(map(str, sorted(sizes)))}. A "
                "factor has one size; what cannot be cut, `need_replication_factors` names."
            )
        for dims, type in self._pairs():
            for factors, size in zip(dims, type.shape, strict=True):
                if len(factors) > 1 and not self.uneven.isdisjoint(factors):
                    raise ValueError(f"{self.rule}: ({' '.join(factors)}) has a factor whose dims differ in size")
                product = math.prod(self.sizes[factor] for factor in factors)
                if len(factors) > 1 and product != size:
                    raise ValueError(
                        f"{self.rule}: ({' '.join(factors)}) has size {product}, and a dim of {type} is {size}"
                    )

    def _pairs(self) -> list[tuple[list[tuple[str, ...]], ArrayType]]:
        return list(zip(self.values, self.types, strict=True))

    def read(self) -> FactorRule:
        operands, results = self.values[: self.count], self.values[self.count :]
        whole = {*self.rule.need_replication_factors, *self.uneven, *self._circular()}
        summed = set(self.rule.reduction_factors)
        across = set(self.rule.permutation_factors)
        if not self.by_hand:
            whole |= across
            # How much of a dim of several factors is whose, a function cannot tell from a piece, but for the first.
            whole |= {factor for dims in operands for factors in dims for factor in factors[1:]}
        for factor in self.sizes:
            taken, given = (
                [any(factor in factors for factors in dims) for dims in values] for values in (operands, results)
            )
            if factor in summed:
                # Where one result has the factor and another is a sum over it, a cut leaves terms of one of them only.
                whole |= {factor} if any(given) else set()
            elif self.by_hand:
                across |= {factor} if any(taken) and not all(given) else set()
            elif not any(taken):
                whole.add(factor)  # the function makes all of it, whatever it is given
            elif factor not in whole:
                self._check_passes(factor, taken, given)
        # What is written for pieces, or added up, is wrong of padding: these are cut evenly or not at all.
        evenly = set(self.sizes) if self.by_hand else summed
        return self._numbered(whole, summed - whole, across - whole, evenly - whole)

    def _check_passes(self, factor: str, taken: Sequence[bool], given: Sequence[bool]) -> None:
        """A result without a factor that passes through is the same for all pieces: no operand that has it matters."""
        for number, (depends, has) in enumerate(zip(self.program.depending(taken), given, strict=True)):
            if depends and not has:
                raise ValueError(
                    f"{self.rule}: operands have {_shown(factor)}, and result {number}, which is made of them, has "
                    f"not. What becomes of pieces along it? `reduction_factors=({factor!r},)`: their results are added "
                    f"up; `need_replication_factors=({factor!r},)`: there are none, it stays whole."
                )

    def _circular(self) -> set[str]:
        """Factors each of which comes before the other in some dim: pieces along both would not be contiguous."""
        return set(self.sizes) - set(self._ordered())

    def _ordered(self) -> list[str]:
        """Factors so that each comes after those that are major to it in any dim."""
        before: dict[str, set[str]] = {factor: set() for factor in self.sizes}
        for dims in self.values:
            for factors in dims:
                for place, factor in enumerate(factors):
                    before[factor] |= set(factors[:place])
        found: list[str] = []
        while ready := [factor for factor in before if factor not in found and before[factor] <= set(found)]:
            found += ready
        return found

    def _numbered(self, whole: set[str], summed: set[str], across: set[str], evenly: set[str]) -> FactorRule:
        """The rule in numbers.

        A factor that is cut evenly only has another one of size 1 before it: in a dim of several factors, what comes
        after the first is cut into equal pieces.
        """
        ordered = self._ordered()
        sizes: list[int] = []
        numbers: dict[str, tuple[int, ...]] = {}
        for factor in (*ordered, *(factor for factor in self.sizes if factor not in ordered)):
            if factor in self.uneven:
                numbers[factor] = ()  # each of its dims has a factor of its own
                continue
            parts = (1, self.sizes[factor]) if factor in evenly else (self.sizes[factor],)
            numbers[factor] = tuple(range(len(sizes), len(sizes) + len(parts)))
            sizes += parts
        own: set[int] = set()

        def dims(value: int) -> Dims:
            found: list[tuple[int, ...]] = []
            for factors, size in zip(self.values[value], self.types[value].shape, strict=True):
                if factors[0] in self.uneven:
                    own.add(len(sizes))
                    found.append((len(sizes),))
                    sizes.append(size)
                else:
                    first, *rest = factors
                    found.append((*numbers[first], *(numbers[factor][-1] for factor in rest)))
            return tuple(found)

        operands = tuple(dims(value) for value in range(self.count))
        results = tuple(dims(value) for value in range(self.count, len(self.values)))

        def those(factors: set[str]) -> frozenset[int]:
            return frozenset(number for factor in factors for number in numbers[factor])

        reduce = dict.fromkeys(sorted(those(summed)), SUM)
        return FactorRule(operands, results, tuple(sizes), reduce, those(whole) | own, those(across))


def mapped_rule(rule: FactorRule, dims: Sequence[int | None], size: int) -> FactorRule:
    """The rule of an op over one more dim: each operand that has it at its place, and all results in front."""
    new = (len(rule.sizes),)
    operands = tuple(
        table if dim is None else (*table[:dim], new, *table[dim:])
        for table, dim in zip(rule.operands, dims, strict=True)
    )
    results = tuple((new, *table) for table in rule.results)
    return FactorRule(operands, results, (*rule.sizes, size), rule.reduce, rule.whole, rule.exchange)


def _check_name(what: str, factor: Any) -> None:
    if not isinstance(factor, str):
        raise TypeError(f"{what}: a factor is a name, not {factor!r}")
    if not re.fullmatch(r"[^\W\d_]\w*", factor):
        raise ValueError(f"{what}: {factor!r} is no name of a factor: one begins with a letter")


def _shown(factor: str) -> str:
    return "a leading dim, `...`," if factor.startswith(BATCHING) else repr(factor)


def _text(mapping: Sequence[Any]) -> str:
    words = [f"({' '.join(dim)})" if isinstance(dim, CompoundFactor) else str(dim) for dim in mapping]
    return " ".join(words).replace(BATCHING, "...")
