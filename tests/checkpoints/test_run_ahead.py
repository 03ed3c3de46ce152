"""Calls run ahead of the use of their results."""

import threading
from functools import partial

import pytest

from shardwise.checkpoints import run_ahead as module
from shardwise.checkpoints.run_ahead import run_ahead


def test_results_come_in_the_order_of_the_calls():
    with run_ahead(partial(pow, number, 2) for number in range(50)) as results:
        assert list(results) == [number**2 for number in range(50)]


def test_a_call_runs_before_its_result_is_asked_for(monkeypatch):
    monkeypatch.setattr(module, "_THREADS", 2)  # on a machine with one core, too
    monkeypatch.setattr(module, "_AHEAD", 2)
    begun = threading.Event()
    with run_ahead([lambda: begun.wait(60), begun.set]) as results:
        assert next(results)  # the second call ended the wait of the first


def test_an_error_of_a_call_is_raised_with_its_result():
    with run_ahead([lambda: 1, lambda: 1 // 0]) as results:
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_calls_that_have_not_begun_are_not_made():
    made = []
    with run_ahead(partial(made.append, number) for number in range(1000)) as results:
        next(results)
    assert 0 < len(made) < 1000
