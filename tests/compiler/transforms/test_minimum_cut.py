"""The cheapest values from which others can be computed, compared with a search through all subsets."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.compiler.transforms.minimum_cut import minimum_cut


def computable(values, operands):
    """Return everything that can be computed from these values."""
    known = set(values)
    while more := {value for value, needs in operands.items() if value not in known and known.issuperset(needs)}:
        known |= more
    return known


@st.composite
def graphs(draw):
    """Draw operands, costs and targets; the operands of a value have smaller numbers."""
    count = draw(st.integers(1, 7))
    operands = {
        value: draw(st.sets(st.integers(0, value - 1), max_size=3)) if value else set()
        for value in range(count)
        if draw(st.booleans())
    }
    costs = {value: draw(st.integers(0, 5)) for value in range(count)}
    targets = draw(st.sets(st.integers(0, count - 1), min_size=1))
    return targets, operands, costs


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_the_cost_is_that_of_the_best_subset(graph):
    targets, operands, costs = graph
    chosen = minimum_cut(targets, operands, costs)
    assert targets <= computable(chosen, operands)
    subsets = (set(subset) for size in range(len(costs) + 1) for subset in combinations(costs, size))
    best = min(sum(costs[value] for value in s) for s in subsets if targets <= computable(s, operands))
    assert sum(costs[value] for value in chosen) == best


def test_of_equal_costs_the_least_is_recomputed():
    assert minimum_cut(["c"], {"b": ["a"], "c": ["b"]}, {"a": 2, "b": 2, "c": 2}) == {"c"}


@pytest.mark.parametrize(
    ("costs", "chosen"), [({"x": 4, "p": 3, "q": 3}, {"x"}), ({"x": 4, "p": 1, "q": 1}, {"p", "q"})]
)
def test_two_targets_of_one_operand(costs, chosen):
    assert minimum_cut(["p", "q"], {"p": ["x"], "q": ["x"]}, costs) == chosen
