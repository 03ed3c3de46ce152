"""Sharding rules for `custom_partitioning`: einsum-like strings over the factors of a function's operands and results.

    "b m k, b k n -> b m n"     with `reduction_factors=("k",)`: a matrix product
    "... i -> ... i"            `...` is any number of leading dims, the same wherever it appears; `...1` are others
    "(i j) k -> i (j k)"        with `i=2, j=4`: compound dims; the sizes of factors that are never a dim of their own
                                are passed

A rule names factors and holds for any rank. `factor_rule` resolves it to the planner's FactorRule for concrete types.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import Dims, FactorRule

BATCHING = "…"  # in an ArrayMapping, a group of leading dims; "…1" is another group


@final
class CompoundFactor(tuple[str, ...]):
    """A dim of several factors, from major to minor: `CompoundFactor("i", "j")`.

    Args:
        *factors: the names of the factors, at least two.

    Raises:
        TypeError: if a factor is not a string.
        ValueError: if there are fewer than two factors, or if a string is not a valid name.
    """

    def __new__(cls, *factors: str) -> "CompoundFactor":
        if len(factors) < 2:
            raise ValueError(f"CompoundFactor: {factors} must be at least two factors; a dim of one factor is its name")
        for factor in factors:
            _check_name("CompoundFactor", factor)
        return super().__new__(cls, factors)


@final
class ArrayMapping(tuple[Any, ...]):
    """The factors of the dims of one array.

    Args:
        *dim_mappings: a factor's name or a CompoundFactor per dim. The first may be `BATCHING`, for any number of
            leading dims.

    Raises:
        TypeError: if a dim is neither a string nor a CompoundFactor.
        ValueError: if a string is not a valid name, or if `BATCHING` is not the first dim.
    """

    def __new__(cls, *dim_mappings: str | CompoundFactor) -> "ArrayMapping":
        for position, dim in enumerate(dim_mappings):
            if isinstance(dim, str) and dim.startswith(BATCHING):
                if position:
                    raise ValueError(f"ArrayMapping: `...` must be the first dim, but in {dim_mappings} it is not")
            elif not isinstance(dim, CompoundFactor):
                _check_name("ArrayMapping", dim)
        return super().__new__(cls, dim_mappings)


@final
class SdyShardingRule:
    """A sharding rule: the factors of every operand and result, by name, as in Shardy.

    Args:
        operand_mappings: an ArrayMapping, or a sequence of its dims, per operand.
        result_mappings: the same per result.
        reduction_factors: the factors along which the results of shards are partial sums.
        need_replication_factors: the factors that are never sharded.
        permutation_factors: the factors along which shards depend on each other.
        **factor_sizes: the sizes of the factors that appear in compound dims only.

    Raises:
        TypeError: if a factor is not a string, if a list of factors is not a tuple, or if a size is not a positive
            integer.
        ValueError: if an option names an unknown factor, if a factor is in two of the lists, or if the size of a factor
            is missing or redundant.
    """

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
        is_own_dim: dict[str, bool] = {}  # whether some dim is this factor alone, and so determines its size
        for dim in (dim for dims in (*self.operand_mappings, *self.result_mappings) for dim in dims):
            for factor in (dim,) if isinstance(dim, str) else dim:
                is_own_dim[factor] = is_own_dim.get(factor, False) or isinstance(dim, str)
        for factor, size in self.factor_sizes.items():
            if type(size) is not int or size < 1:
                raise TypeError(
                    f"sharding_rule: the size of factor {factor!r} must be a positive integer, not {size!r}"
                )
            if factor not in is_own_dim:
                raise ValueError(f"sharding_rule: a size is passed for {factor!r}, which is not a factor of the rule")
            if is_own_dim[factor]:
                raise ValueError(
                    f"sharding_rule: the size of {factor!r} is known, because it is a dim of its own: do not pass it"
                )
        for factor, is_known in is_own_dim.items():
            if not is_known and factor not in self.factor_sizes:
                raise ValueError(
                    f"sharding_rule: the size of {factor!r} is unknown, because it is in compound dims only: pass "
                    f"`{factor}=…`"
                )
        options: dict[str, str] = {}
        for option in ("reduction_factors", "need_replication_factors", "permutation_factors"):
            factors = getattr(self, option)
            if not isinstance(factors, tuple):
                raise TypeError(f"sharding_rule: {option} must be a tuple of names, not {factors!r}")
            for factor in factors:
                if factor not in is_own_dim:
                    raise ValueError(f"sharding_rule: {option} has {factor!r}, which is not a factor of the rule")
                if factor in options:
                    raise ValueError(
                        f"sharding_rule: {factor!r} is in both {options[factor]} and {option}; it can be in one only"
                    )
                options[factor] = option

    def __repr__(self) -> str:
        sides = (", ".join(map(_mapping_text, values)) for values in (self.operand_mappings, self.result_mappings))
        return f"SdyShardingRule({' -> '.join(sides)!r})"


def parse_rule(text: str, **options: Any) -> SdyShardingRule:
    """Parse a rule from a string; `options` are those of SdyShardingRule."""
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise ValueError(f"sharding_rule {text!r}: must have one `->` between the operands and the results")
    return SdyShardingRule(_parse_mappings(text, left), _parse_mappings(text, right), **options)


def parse_rule_and_options(function: str, rule: object) -> SdyShardingRule:
    """Parse a rule from a string, or from a tuple of a string and a dict of the options of SdyShardingRule."""
    text, options = rule if isinstance(rule, tuple) and len(rule) == 2 else (rule, {})
    if not isinstance(text, str) or not isinstance(options, Mapping):
        raise TypeError(
            f"{function}: sharding_rule must be a string such as '... k -> ... k', or a tuple of a string and a dict "
            f"of options, not {rule!r}"
        )
    return parse_rule(text, **options)


def _parse_mappings(rule: str, side: str) -> list[ArrayMapping]:
    """Parse the arrays on one side of a rule; an empty side is one scalar."""
    arrays: list[list[Any]] = [[]]
    group: list[str] | None = None
    for word in re.findall(r"\.\.\.\d*|\w+|\S", side):
        if word == "(" and group is None:
            group = []
        elif word == ")" and group is not None:
            arrays[-1].append(CompoundFactor(*group))
            group = None
        elif word == "," and group is None:
            arrays.append([])
        elif word.startswith("...") and group is None:
            arrays[-1].append(BATCHING + word[3:])
        elif re.fullmatch(r"[^\W\d_]\w*", word):
            (arrays[-1] if group is None else group).append(word)
        else:
            raise ValueError(
                f"sharding_rule {rule!r}: unexpected {word!r}. A rule consists of factor names, `...`, parentheses "
                "around the factors of a compound dim, and commas between arrays."
            )
    if group is not None:
        raise ValueError(f"sharding_rule {rule!r}: a parenthesis is not closed")
    return [ArrayMapping(*dims) for dims in arrays]


def factor_rule(rule: SdyShardingRule | None, program: Program, has_partition: bool) -> FactorRule:
    """Resolve a rule for the types of a program; without a rule, all factors are replicated.

    `has_partition`: whether a function that the user wrote for shards runs on them. It may communicate between shards.
    Otherwise the function itself runs on shards, which is correct along factors that pass through, and along reduction
    factors up to a sum.
    """
    if rule is None:
        return replicated_rule(program.in_types, program.out_types)
    return _RuleResolver(rule, program, has_partition).resolve()


def replicated_rule(operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> FactorRule:
    """Return the rule of an op whose operands and results must all be replicated."""
    sizes: list[int] = []

    def dims(type: ArrayType) -> Dims:
        sizes.extend(type.shape)
        return tuple((index,) for index in range(len(sizes) - type.ndim, len(sizes)))

    left, right = (tuple(dims(type) for type in types) for types in (operands, results))
    return FactorRule(left, right, tuple(sizes), need_replication=frozenset(range(len(sizes))))


class _RuleResolver:
    """Resolves a rule for arrays of concrete types."""

    def __init__(self, rule: SdyShardingRule, program: Program, has_partition: bool):
        self.rule = rule
        self.program = program
        self.has_partition = has_partition
        self.types = (*program.in_types, *program.out_types)
        self.operand_count = len(program.inputs)
        self.ellipsis_ranks: dict[str, int] = {}  # the number of dims of each `...`
        self.values = [
            *self._expand("operand", rule.operand_mappings, program.in_types),
            *self._expand("result", rule.result_mappings, program.out_types),
        ]
        self.sizes = dict(rule.factor_sizes)
        self.unequal: set[str] = set()  # factors whose dims have different sizes
        self._resolve_sizes()

    def _expand(
        self, role: str, mappings: Sequence[ArrayMapping], types: Sequence[ArrayType]
    ) -> list[list[tuple[str, ...]]]:
        """Return the factor names of each dim of each array; the dims of `...` get generated names."""
        if mappings == (ArrayMapping(),) and not types:
            return []
        if len(mappings) != len(types):
            raise ValueError(f"{self.rule}: the rule has {len(mappings)} {role}s, but the function has {len(types)}")
        arrays = []
        for index, (mapping, type) in enumerate(zip(mappings, types, strict=True)):
            dims = [(dim,) if isinstance(dim, str) else tuple(dim) for dim in mapping]
            if mapping and isinstance(mapping[0], str) and mapping[0].startswith(BATCHING):
                group = mapping[0].removeprefix(BATCHING) or "0"
                rank = type.ndim - len(dims) + 1
                if rank >= 0 and self.ellipsis_ranks.setdefault(group, rank) != rank:
                    raise ValueError(
                        f"{self.rule}: `...` has rank {rank} in {role} {index}, {type}, but rank "
                        f"{self.ellipsis_ranks[group]} elsewhere"
                    )
                dims[:1] = [(f"{BATCHING}{group}_{index}",) for index in range(rank)]
            if len(dims) != type.ndim:
                raise ValueError(
                    f"{self.rule}: {role} {index} has rank {len(dims)} in the rule, but its type is {type}"
                )
            arrays.append(dims)
        return arrays

    def _resolve_sizes(self) -> None:
        """Compute the size of every factor, and check that its dims agree on it."""
        for dims, type in zip(self.values, self.types, strict=True):
            for factors, size in zip(dims, type.shape, strict=True):
                if len(factors) == 1 and self.sizes.setdefault(factors[0], size) != size:
                    self.unequal.add(factors[0])
                    self.sizes[factors[0]] = min(size, self.sizes[factors[0]])
        may_differ = (*self.rule.need_replication_factors, *self.rule.permutation_factors)
        if wrong := [factor for factor in self.sizes if factor in self.unequal and factor not in may_differ]:
            sizes = {
                type.shape[d]
                for dims, type in self._pairs()
                for d, factors in enumerate(dims)
                if factors == (wrong[0],)
            }
            raise ValueError(
                f"{self.rule}: dims of {_factor_text(wrong[0])} have the sizes "
                f"{' and '.join(map(str, sorted(sizes)))}. A factor must have one size, unless it is in "
                "`need_replication_factors`."
            )
        for dims, type in self._pairs():
            for factors, size in zip(dims, type.shape, strict=True):
                if len(factors) > 1 and not self.unequal.isdisjoint(factors):
                    raise ValueError(
                        f"{self.rule}: the compound dim ({' '.join(factors)}) has a factor with dims of different sizes"
                    )
                product = math.prod(self.sizes[factor] for factor in factors)
                if len(factors) > 1 and product != size:
                    raise ValueError(
                        f"{self.rule}: ({' '.join(factors)}) has size {product}, but the dim of {type} has size {size}"
                    )

    def _pairs(self) -> list[tuple[list[tuple[str, ...]], ArrayType]]:
        return list(zip(self.values, self.types, strict=True))

    def resolve(self) -> FactorRule:
        operands, results = self.values[: self.operand_count], self.values[self.operand_count :]
        replicated = {*self.rule.need_replication_factors, *self.unequal, *self._cyclic_factors()}
        # With `partition`, the function of shards sums its results itself, as in JAX.
        reduced = set() if self.has_partition else set(self.rule.reduction_factors)
        exchanged = set(self.rule.permutation_factors)
        if not self.has_partition:
            replicated |= exchanged
            # A local shape does not determine the sizes of a compound dim's factors, except for the first.
            replicated |= {factor for dims in operands for factors in dims for factor in factors[1:]}
        for factor in self.sizes:
            in_operands, in_results = (
                [any(factor in factors for factors in dims) for dims in values] for values in (operands, results)
            )
            if factor in reduced:
                # If one result has the factor and another is a sum over it, only the latter would be partial.
                replicated |= {factor} if any(in_results) else set()
            elif self.has_partition:
                exchanged |= {factor} if any(in_operands) and not all(in_results) else set()
            elif not any(in_operands):
                replicated.add(factor)  # the function computes all of it on every device
            elif factor not in replicated:
                self._check_passes_through(factor, in_operands, in_results)
        # Sums and functions written for shards are wrong with padding: these factors are sharded evenly or not at all.
        even = set(self.sizes) if self.has_partition else reduced
        return self._build(replicated, reduced - replicated, exchanged - replicated, even - replicated)

    def _check_passes_through(self, factor: str, in_operands: Sequence[bool], in_results: Sequence[bool]) -> None:
        """Raise if a result depends on operands that have the factor, but does not have it itself."""
        for index, (depends, has) in enumerate(
            zip(self.program.outputs_depending_on(in_operands), in_results, strict=True)
        ):
            if depends and not has:
                raise ValueError(
                    f"{self.rule}: operands have {_factor_text(factor)}, but result {index}, which depends on them, "
                    f"does not. If shards along it are partial sums, pass `reduction_factors=({factor!r},)`; if it "
                    f"cannot be sharded, pass `need_replication_factors=({factor!r},)`."
                )

    def _cyclic_factors(self) -> set[str]:
        """Return factors that are major to each other in different dims: shards along both are not contiguous."""
        return set(self.sizes) - set(self._topological_order())

    def _topological_order(self) -> list[str]:
        """Return the factors so that each comes after those that are major to it in any dim."""
        major: dict[str, set[str]] = {factor: set() for factor in self.sizes}
        for dims in self.values:
            for factors in dims:
                for position, factor in enumerate(factors):
                    major[factor] |= set(factors[:position])
        order: list[str] = []
        while ready := [factor for factor in major if factor not in order and major[factor] <= set(order)]:
            order += ready
        return order

    def _build(self, replicated: set[str], reduced: set[str], exchanged: set[str], even: set[str]) -> FactorRule:
        """Build the FactorRule, which has numbers for names.

        A factor that is sharded evenly or not at all gets another factor of size 1 before it: the planner shards only
        the first factor of a dim unevenly.
        """
        ordered = self._topological_order()
        sizes: list[int] = []
        numbers: dict[str, tuple[int, ...]] = {}
        for factor in (*ordered, *(factor for factor in self.sizes if factor not in ordered)):
            if factor in self.unequal:
                numbers[factor] = ()  # each of its dims gets a factor of its own
                continue
            factor_sizes = (1, self.sizes[factor]) if factor in even else (self.sizes[factor],)
            numbers[factor] = tuple(range(len(sizes), len(sizes) + len(factor_sizes)))
            sizes += factor_sizes
        single_dim: set[int] = set()  # factors of one dim each, for names with dims of different sizes

        def dims(value: int) -> Dims:
            factors_of_dims: list[tuple[int, ...]] = []
            for factors, size in zip(self.values[value], self.types[value].shape, strict=True):
                if factors[0] in self.unequal:
                    single_dim.add(len(sizes))
                    factors_of_dims.append((len(sizes),))
                    sizes.append(size)
                else:
                    first, *rest = factors
                    factors_of_dims.append((*numbers[first], *(numbers[factor][-1] for factor in rest)))
            return tuple(factors_of_dims)

        operands = tuple(dims(value) for value in range(self.operand_count))
        results = tuple(dims(value) for value in range(self.operand_count, len(self.values)))

        def numbers_of(factors: set[str]) -> frozenset[int]:
            return frozenset(number for factor in factors for number in numbers[factor])

        reduce = dict.fromkeys(sorted(numbers_of(reduced)), SUM)
        return FactorRule(
            operands, results, tuple(sizes), reduce, numbers_of(replicated) | single_dim, numbers_of(exchanged)
        )


def _check_name(owner: str, factor: object) -> None:
    if not isinstance(factor, str):
        raise TypeError(f"{owner}: a factor must be a string, not {factor!r}")
    if not re.fullmatch(r"[^\W\d_]\w*", factor):
        raise ValueError(f"{owner}: {factor!r} is not a valid factor name: a name begins with a letter")


def _factor_text(factor: str) -> str:
    return "a leading dim, `...`," if factor.startswith(BATCHING) else repr(factor)


def _mapping_text(mapping: Sequence[Any]) -> str:
    words = [f"({' '.join(dim)})" if isinstance(dim, CompoundFactor) else str(dim) for dim in mapping]
    return " ".join(words).replace(BATCHING, "...")
