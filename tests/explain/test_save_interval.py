"""best_interval against a search of the exact expected goodput, and against Young's approximation."""

import math

import numpy as np
import pytest

from shardwise.explain.save_interval import best_interval


def expected_goodput(interval, rate, save_seconds):
    """The expected goodput with exponential failures and recoveries that take no time (Daly 2006)."""
    return interval * rate / np.expm1(rate * (interval + save_seconds))


@pytest.mark.parametrize("rate", [1e-7, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("save_seconds", [1e-3, 0.5, 20.0])
def test_no_other_interval_has_a_higher_expected_goodput(rate, save_seconds):
    best = best_interval(rate, save_seconds, 0.0)
    others = np.geomspace(best / 100, best * 100, 20001)
    assert expected_goodput(best, rate, save_seconds) >= expected_goodput(others, rate, save_seconds).max() * (1 - 1e-9)


def test_short_saves_have_youngs_interval():
    assert best_interval(1e-5, 0.1, 0.0) == pytest.approx(math.sqrt(2 * 0.1 / 1e-5), rel=2e-3)


def test_intervals_have_a_lower_bound_and_no_failures_have_no_saves():
    assert best_interval(1.0, 1e-9, 30.0) == 30.0
    assert best_interval(0.0, 1.0, 30.0) == math.inf
