"""The time by which steps are slower beside a copy."""

import pytest

from shardwise.checkpoints.slowdown_meter import SlowdownMeter


def metered(copying: list[float], alone: list[float]) -> SlowdownMeter:
    """Return a meter that has seen these steps, in seconds, after a copy has started."""
    meter = SlowdownMeter()
    now = 100.0
    meter.end_step(now, is_copying=False)
    now += 7.0
    meter.end_step(now, is_copying=False)  # before the copy: forgotten
    meter.start_copy(now)
    steps = [*copying, *alone]
    for number, seconds in enumerate(steps, start=1):
        now += seconds
        meter.end_step(now, is_copying=number < len(copying))
    return meter


def test_slowdown_is_what_steps_beside_the_copy_took_longer() -> None:
    assert metered([1.5, 1.25], [1.0, 1.0, 1.0]).slowdown == pytest.approx(0.75)


def test_steps_that_are_not_slower_cost_nothing() -> None:
    assert metered([0.9, 1.0], [1.0, 1.0, 1.0]).slowdown == 0.0


def test_too_few_steps_alone_say_nothing() -> None:
    assert metered([3.0, 3.0], [1.0, 1.0]).slowdown == 0.0


def test_steps_of_a_program_that_does_not_wait_for_each_say_nothing() -> None:
    # It enqueues steps, and waits for every third one.
    assert metered([0.01, 0.01, 6.0], [0.01, 0.01, 6.0, 0.01, 0.01, 6.0]).slowdown == 0.0


def test_the_time_of_a_save_belongs_to_no_step() -> None:
    meter = metered([1.5], [1.0, 1.0, 1.0])
    meter.end_step(200.0, is_copying=False)
    meter.start_copy(205.0)
    for now in (206.0, 207.0, 208.0, 209.0):
        meter.end_step(now, is_copying=False)
    assert meter.slowdown == 0.0


def test_nothing_is_known_before_the_first_copy() -> None:
    assert SlowdownMeter().slowdown == 0.0
