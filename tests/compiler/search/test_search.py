"""Search: the cheapest of the moves below the bound, within the limit."""

import pytest

from shardwise.compiler.search.search import INADMISSIBLE, Move, Search, move_limit


def moves(*costs, tried):
    for cost in costs:

        def plan(cost=cost):
            tried.append(cost)
            return cost

        yield Move(f"move to {cost}", plan)


@pytest.mark.parametrize(
    ("costs", "limit", "best"),
    [
        ((9, 4, 7), 3, 4),
        ((9, 4, 7), 1, 9),
        ((12, 11, 10), 3, None),  # a move must be below the bound
        ((INADMISSIBLE, 9, INADMISSIBLE), 3, 9),
        ((), 3, None),
        ((9,), 0, None),
    ],
)
def test_the_cheapest_move_within_the_limit(costs, limit, best):
    tried = []
    search = Search(float, 10, limit)
    trial = search.best(moves(*costs, tried=tried))
    assert (trial and trial.cost) == best
    assert trial is None or trial.change == f"move to {best}"
    assert search.tried == len(tried) == min(limit, len(costs))
    assert search.is_exhausted == (len(costs) >= limit)


def test_later_calls_must_beat_the_best_so_far():
    search, tried = Search(float, 10, 9), []
    assert search.best(moves(6, tried=tried)).cost == 6
    assert search.best(moves(7, 8, tried=tried)) is None
    assert search.best(moves(5, tried=tried)).cost == 5
    assert search.tried == 4


def test_the_first_move_below_the_bound_ends_a_search_for_the_first():
    search, tried = Search(float, 10, 9), []
    assert search.first(moves(11, 8, 3, tried=tried)).cost == 8
    assert tried == [11, 8]


def test_large_programs_are_planned_again_less_often():
    assert move_limit(10, 2, 12) == 12
    assert move_limit(5_000, 2, 12) == 4
    assert move_limit(10**6, 2, 12) == 2
    assert move_limit(0, 2, 12) == 12
