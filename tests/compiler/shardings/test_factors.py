"""Factor rules: parsing, and the rule of reshape, checked against reshapes of numpy arrays."""

import itertools
import math
import string
from dataclasses import replace

import numpy as np
import pytest

from shardwise.compiler.reduction import MAX, SUM
from shardwise.compiler.shardings.factors import FactorRule


def written(rule: FactorRule) -> str:
    """Return the text of a rule, with factors named in order of number."""
    names = string.ascii_lowercase

    def dim(factors):
        return names[factors[0]] if len(factors) == 1 else f"({' '.join(names[f] for f in factors)})"

    sides = [", ".join(" ".join(map(dim, dims)) for dims in side) for side in (rule.operands, rule.results)]
    return " -> ".join(sides).strip()


class TestParse:
    def test_a_matrix_product(self):
        rule = FactorRule.parse("b m k, b k n -> b m n", sizes={"b": 2, "m": 3, "k": 4, "n": 5}, reduce={"k": "sum"})
        assert rule.operands == (((0,), (1,), (2,)), ((0,), (2,), (3,)))
        assert rule.results == (((0,), (1,), (3,)),)
        assert rule.sizes == (2, 3, 4, 5)
        assert rule.reduce == {2: SUM}
        assert rule.leading == {0, 1, 2, 3}
        assert rule.compound == frozenset()

    def test_a_reshape(self):
        rule = FactorRule.parse("(i j) k -> i (j k)", sizes={"i": 2, "j": 4, "k": 4})
        assert rule.operands == (((0, 1), (2,)),)
        assert rule.results == (((0,), (1, 2)),)
        assert rule.compound == {0, 1, 2}
        assert rule.leading == {0}  # j is minor on the left, k on the right

    def test_no_operands_and_several_results(self):
        rule = FactorRule.parse("-> a b, b", sizes={"a": 2, "b": 3})
        assert rule.operands == ()
        assert rule.results == (((0,), (1,)), ((1,),))

    def test_dims_without_factors(self):
        rule = FactorRule.parse("a () -> a", sizes={"a": 2})
        assert rule.operands == (((0,), ()),)

    def test_an_unknown_factor(self):
        with pytest.raises(KeyError, match="z"):
            FactorRule.parse("z -> z", sizes={"a": 2})


def test_pointwise():
    assert FactorRule.pointwise((3, 4), 2) == FactorRule.parse("a b, a b -> a b", {"a": 3, "b": 4})
    assert FactorRule.pointwise((3, 4), 0) == FactorRule.parse("-> a b", {"a": 3, "b": 4})


def test_reducing():
    rule = FactorRule.parse("a b c -> b", {"a": 2, "b": 3, "c": 4}, reduce={"a": "max", "c": "max"})
    assert FactorRule.reducing((2, 3, 4), (2, 0), MAX) == rule


@pytest.mark.parametrize(
    ("before", "after", "rule", "sizes", "need_replication"),
    [
        ((8, 4), (2, 16), "(a b) c -> a (b c)", (2, 4, 4), ""),
        ((6,), (2, 3), "(a b) -> a b", (2, 3), ""),
        ((2, 3), (6,), "a b -> (a b)", (2, 3), ""),
        ((3, 4), (3, 4), "a b -> a b", (3, 4), ""),
        ((4, 5), (4, 1, 5), "a b -> a () b", (4, 5), ""),
        ((1, 4, 1), (4,), "() a () -> a", (4,), ""),
        ((6, 4), (4, 6), "(a b) c -> (a d) e", (2, 3, 4, 2, 6), "bcde"),
        ((2, 3), (3, 2), "a b -> c d", (2, 3, 3, 2), "abcd"),
        ((5, 6, 4), (5, 4, 6), "a (b c) d -> a (b e) f", (5, 2, 3, 4, 2, 6), "cdef"),
        ((6, 4, 7), (4, 6, 7), "(a b) c d -> (a e) f d", (2, 3, 4, 7, 2, 6), "bcef"),
        ((12, 2), (3, 8), "(a b) c -> a (b c)", (3, 4, 2), ""),
        ((2, 6, 2), (4, 3, 2), "a (b c) d -> (a b) c d", (2, 2, 3, 2), ""),
        ((3, 0), (0, 5), "a b -> c d", (3, 0, 0, 5), "abcd"),
    ],
    ids=str,
)
def test_reshaping(before, after, rule, sizes, need_replication):
    names = dict(zip(string.ascii_lowercase, sizes, strict=False))
    wanted = replace(
        FactorRule.parse(rule, names), need_replication=frozenset(map(list(names).index, need_replication))
    )
    assert renumbered(FactorRule.reshaping(before, after)) == renumbered(wanted)


@pytest.mark.parametrize(("before", "after"), [((), (1,)), ((1, 1), ()), ((), ())])
def test_reshaping_a_scalar_has_no_factors(before, after):
    assert FactorRule.reshaping(before, after) == FactorRule((((),) * len(before),), (((),) * len(after),), ())


def renumbered(rule: FactorRule) -> tuple:
    """Return the rule with factors numbered in order of appearance, so that equivalent rules are equal."""
    order: dict[int, int] = {}
    tables = [
        [[order.setdefault(f, len(order)) for f in factors] for factors in dims]
        for dims in (*rule.operands, *rule.results)
    ]
    return tables, [rule.sizes[f] for f in order], {order[f] for f in rule.need_replication}


def assert_factors_fill(rule: FactorRule, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    for dims, shape in ((rule.operands[0], before), (rule.results[0], after)):
        assert tuple(math.prod(rule.sizes[f] for f in factors) for factors in dims) == shape


def shapes_of(size: int) -> list[tuple[int, ...]]:
    """Return all shapes of up to three dims with this many elements."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [
        shape for rank in (1, 2, 3) for shape in itertools.product(divisors, repeat=rank) if math.prod(shape) == size
    ]


@pytest.mark.parametrize("size", [1, 12, 24, 30])
def test_sharding_a_leading_factor_commutes_with_any_reshape(size):
    """Splitting an array along the factor, reshaping the shards and joining them equals reshaping the array."""
    whole = np.arange(size)
    for before, after in itertools.product(shapes_of(size), repeat=2):
        rule = FactorRule.reshaping(before, after)
        assert_factors_fill(rule, before, after)
        assert not rule.leading & rule.need_replication
        for factor in rule.leading:
            cut = [next(d for d, fs in enumerate(dims) if factor in fs) for dims in (rule.operands[0], rule.results[0])]
            pieces = np.split(whole.reshape(before), rule.sizes[factor], cut[0])
            shape = tuple(n // rule.sizes[factor] if d == cut[1] else n for d, n in enumerate(after))
            joined = np.concatenate([piece.reshape(shape) for piece in pieces], cut[1])
            np.testing.assert_array_equal(joined, whole.reshape(after), f"{before} -> {after}: {written(rule)}")


@pytest.mark.parametrize(
    ("before", "after", "leading"),
    [
        ((8, 4), (2, 16), {2}),
        ((4, 6), (24,), {4}),
        ((24,), (4, 6), {4}),
        ((4, 6), (4, 2, 3), {4, 2}),
        ((6, 4), (4, 6), {2}),
        ((3, 5), (5, 3), set()),
        ((4, 5), (1, 4, 5, 1), {4, 5}),
    ],
)
def test_the_leading_factors_of_reshapes(before, after, leading):
    rule = FactorRule.reshaping(before, after)
    assert {rule.sizes[f] for f in rule.leading} == leading


class TestShardingCompoundDims:
    """`(i j) k -> i j k` of 6×4 rows: shards must be contiguous."""

    RULE = FactorRule.parse("(i j) k -> i j k", dict(i=6, j=4, k=5))

    @pytest.mark.parametrize(
        ("counts", "allowed"),
        [
            ({0: 2}, True),
            ({0: 6}, True),
            ({0: 4}, True),  # uneven, with the padding at the end of both dims
            ({0: 8}, False),  # more shards than elements
            ({1: 2}, False),  # shards would not be contiguous
            ({0: 3, 1: 2}, False),
            ({0: 6, 1: 2}, True),
            ({0: 6, 1: 3}, False),  # the padding would be inside the dim
            ({2: 4}, True),
        ],
    )
    def test_allows_sharding(self, counts, allowed):
        assert self.RULE.allows_sharding(counts) is allowed

    @pytest.mark.parametrize(
        ("axes", "assigned"),
        [
            ((), [(), ()]),
            (("two",), [("two",), ()]),
            (("two", "three"), [("two", "three"), ()]),
            (("two", "three", "four"), [("two", "three"), ("four",)]),
            (("four",), [("four",), ()]),  # uneven
            (("two", "two_more"), [("two", "two_more"), ()]),
        ],
    )
    def test_assign_axes(self, axes, assigned):
        assert self.RULE.assign_axes((0, 1), axes, {"two": 2, "two_more": 2, "three": 3, "four": 4}) == assigned
