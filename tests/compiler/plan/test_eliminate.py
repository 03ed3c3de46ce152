"""Variable elimination against brute force: exact, and with fixed variables never worse than the hint."""

from itertools import product
from random import Random

import numpy as np
import pytest

from shardwise.compiler.plan.eliminate import IdentityCache, eliminate


def random_tables(rng, variables=6, most=3, forbidden=0.1):
    """Return random numbers of labels and tables of up to three variables, with some forbidden entries."""
    labels = [rng.randint(1, most) for _ in range(variables)]
    tables = []
    for _ in range(rng.randint(1, 2 * variables)):
        scope = tuple(rng.sample(range(variables), rng.randint(1, 3)))
        costs = np.array([rng.randint(0, 9) for _ in range(int(np.prod([labels[v] for v in scope])))], float)
        costs[[rng.random() < forbidden for _ in costs]] = np.inf
        tables.append((scope, costs.reshape([labels[v] for v in scope])))
    return labels, tables


def cost(tables, chosen):
    return sum(costs[tuple(chosen[v] for v in scope)] for scope, costs in tables)


def best(labels, tables):
    return min(cost(tables, chosen) for chosen in product(*map(range, labels)))


@pytest.mark.parametrize("seed", range(200))
def test_elimination_is_exact_if_no_variable_is_fixed(seed):
    labels, tables = random_tables(Random(seed))
    assert cost(tables, eliminate(labels, tables, lambda: [0] * len(labels))) == best(labels, tables)


def test_large_tables_are_exact_and_ties_go_to_the_lowest_label():
    """The sum of the tables of the first variable has 6,000 entries and many ties."""
    rng = np.random.default_rng(0)
    labels = [6, 10, 10, 10]
    tables = [((0, 1), rng.integers(0, 3, (6, 10)) * 1.0), ((2, 0), rng.integers(0, 3, (10, 6)) * 1.0)]
    tables += [((3, 0, 1), rng.integers(0, 3, (10, 6, 10)) * 1.0), ((1, 2, 3), rng.integers(0, 3, (10, 10, 10)) * 1.0)]
    chosen = eliminate(labels, tables, lambda: [0] * len(labels))
    assert cost(tables, chosen) == best(labels, tables)
    others = [label for label in range(chosen[0]) if cost(tables, [label, *chosen[1:]]) == best(labels, tables)]
    assert not others


@pytest.mark.parametrize("limit", [2, 4, 10])
@pytest.mark.parametrize("seed", range(60))
def test_the_result_is_never_worse_than_the_hint(seed, limit):
    rng = Random(seed)
    labels, tables = random_tables(rng, variables=7)
    hint = [rng.randrange(count) for count in labels]
    found = cost(tables, eliminate(labels, tables, lambda: hint, limit))
    assert best(labels, tables) <= found <= cost(tables, hint)


def test_fixed_variables_have_the_label_of_the_hint():
    tables = [((0, 1), np.array([[5.0, 1.0], [0.0, 9.0]]))]
    assert eliminate([2, 2], tables, lambda: [0, 1]) == [1, 0]
    # One variable is fixed; the other still gets its best label.
    assert eliminate([2, 2], tables, lambda: [0, 1], limit=1) == [0, 1]


def test_ties_go_to_the_lowest_label():
    assert eliminate([3, 3], [((0, 1), np.zeros((3, 3)))], lambda: [2, 2]) == [0, 0]


def test_a_variable_without_tables_gets_its_lowest_label():
    assert eliminate([2, 3], [((1,), np.array([2.0, 0.0, 1.0]))], lambda: [1, 0]) == [0, 1]


def test_a_variable_may_have_many_neighbours_with_one_label():
    # There are more neighbours than an array can have dims.
    neighbours = 100
    tables = [((0, 1 + n), np.array([[1.0], [0.0]])) for n in range(neighbours)]
    tables.append(((0, neighbours + 1), np.array([[0.0, 3.0], [0.0, 3.0]])))
    assert eliminate([2, *[1] * neighbours, 2], tables, lambda: [0] * (neighbours + 2)) == [1, *[0] * neighbours, 0]


def test_a_long_chain_with_a_hub_is_exact():
    # Each variable prefers the label of its neighbour, and the hub prefers 1, so all labels are 1.
    count = 80
    tables = [((n, n + 1), np.array([[0.0, 2.0], [2.0, 0.0]])) for n in range(count - 1)]
    tables += [((n, count), np.array([[0.0, 1.0], [1.0, 0.0]])) for n in range(count)]
    tables.append(((count,), np.array([0.5, 0.0])))
    assert eliminate([2] * (count + 1), tables, lambda: [0] * (count + 1)) == [1] * (count + 1)


def test_the_order_keeps_tables_small():
    """Each value has many uses, which all meet in the next value: a grid of values and uses, four labels each."""
    length, uses, count = 12, 6, 4
    rng = np.random.default_rng(0)
    tables = []
    for n in range(length):
        for use in range(1, uses + 1):
            variable = n * (uses + 1) + use
            tables.append(((n * (uses + 1), variable), rng.integers(0, 9, (count, count)) * 1.0))
            if n + 1 < length:
                tables.append(((variable, (n + 1) * (uses + 1)), rng.integers(0, 9, (count, count)) * 1.0))

    def no_hint():
        raise AssertionError("a table exceeds the limit")

    labels = [count] * (length * (uses + 1))
    chosen = eliminate(labels, tables, no_hint, limit=count**3)
    assert cost(tables, chosen) == cost(tables, eliminate(labels, tables, no_hint))


def test_after_many_large_tables_the_limit_is_smaller(monkeypatch):
    """The result is still no worse than the hint, and equal tables count once."""
    monkeypatch.setattr("shardwise.compiler.plan.eliminate._LATE_LIMIT", 8)
    monkeypatch.setattr("shardwise.compiler.plan.eliminate._BUDGET", 8)
    rng = Random(7)
    labels, tables = random_tables(rng, variables=9, most=4)
    hint = [0] * len(labels)
    found = cost(tables, eliminate(labels, tables, lambda: hint))
    assert best(labels, tables) <= found <= cost(tables, hint)


def test_a_large_cache_drops_its_results(monkeypatch):
    cache = IdentityCache()

    def cached():
        return cache.get("zeros", [], lambda: np.zeros(4))

    first = cached()
    cache.trim()
    assert cached() is first
    monkeypatch.setattr("shardwise.compiler.plan.eliminate._CACHE_BYTES", first.nbytes - 1)
    cache.trim()
    assert cached() is not first
