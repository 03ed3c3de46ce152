"""The schedule of kernels on three streams: a property test of its rules."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.compiler.report.streams import COMMUNICATION, COMPUTE, list_schedule


@st.composite
def tasks(draw):
    count = draw(st.integers(1, 30))
    seconds = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    streams = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    needs = [set(draw(st.lists(st.integers(0, index - 1), max_size=3))) if index else set() for index in range(count)]
    return [float(value) for value in seconds], streams, needs


@given(tasks(), st.sampled_from([1, 4, 256]), st.sampled_from([(0.0,), (0.25, 0.0, 0.5)]))
def test_needs_are_met_streams_run_one_task_and_do_not_wait_for_nothing(work, window, rates):
    seconds, streams, needs = work
    lost = [rates[index % len(rates)] if stream == COMMUNICATION else 0.0 for index, stream in enumerate(streams)]
    starts, ends = list_schedule(seconds, streams, needs, lost, window)
    for index, need in enumerate(needs):
        assert all(ends[other] <= starts[index] for other in need)
    for stream in range(3):
        order = sorted((starts[n], ends[n]) for n in range(len(seconds)) if streams[n] == stream)
        assert all(end <= start for (_, end), (start, _) in pairwise(order))
    durations = [end - start for start, end in zip(starts, ends, strict=True)]
    for n, duration in enumerate(durations):
        beside = [max(0.0, min(ends[n], end) - max(starts[n], start)) for start, end in zip(starts, ends, strict=True)]
        added = sum(rate * overlap for rate, overlap in zip(lost, beside, strict=True))
        assert duration == pytest.approx(seconds[n] + (added if streams[n] == COMPUTE else 0.0))
    longest = _critical_path(durations, needs)
    per_stream = [sum(s for s, c in zip(durations, streams, strict=True) if c == stream) for stream in range(3)]
    assert max(longest, *per_stream) - 1e-9 <= max(ends) <= sum(durations) + 1e-9


def _critical_path(seconds, needs):
    ends = []
    for duration, need in zip(seconds, needs, strict=True):
        ends.append(duration + max((ends[other] for other in need), default=0.0))
    return max(ends)


@given(tasks(), st.lists(st.sampled_from([1.0, 1.25, 1.5]), min_size=30, max_size=30))
def test_slower_tasks_in_the_same_order_are_not_slowed_down_together_more_than_each(work, slowdowns):
    seconds, streams, needs = work
    starts, ends = list_schedule(seconds, streams, needs)
    longer = [slowdown * duration for slowdown, duration in zip(slowdowns, seconds, strict=False)]
    _, longer_ends = list_schedule(longer, streams, needs, order=starts)
    assert max(ends) - 1e-9 <= max(longer_ends) <= 1.5 * max(ends) + 1e-9


def test_a_longer_kernel_does_not_change_the_order_of_collectives():
    """If the kernel 0 ended after the collective 1, collective 2 would be sent before 3, and kernel 4 would wait."""
    streams, needs = [0, 1, 1, 1, 0], [set(), set(), set(), {0}, {3}]
    starts, ends = list_schedule([1.0, 2.0, 9.0, 1.0, 9.0], streams, needs)
    assert max(list_schedule([3.0, 2.0, 9.0, 1.0, 9.0], streams, needs)[1]) == 21.0
    assert max(list_schedule([3.0, 2.0, 9.0, 1.0, 9.0], streams, needs, order=starts)[1]) == max(ends)


def test_the_first_ready_task_runs_first():
    starts, ends = list_schedule([5.0, 1.0, 1.0, 1.0], [1, 0, 0, 0], [set(), {0}, set(), set()])
    assert starts == [0.0, 5.0, 0.0, 1.0] and ends == [5.0, 6.0, 1.0, 2.0]


def test_a_collective_slows_the_kernel_beside_it_down():
    starts, ends = list_schedule([10.0, 4.0, 1.0], [0, 1, 0], [set(), set(), {0}], [0.0, 0.25, 0.0])
    assert starts == [0.0, 0.0, 11.0]
    assert ends == [11.0, 4.0, 12.0]  # 3 seconds of work in the first 4, and 7 after them


def test_a_collective_that_starts_later_slows_the_rest_of_a_kernel_down():
    _, ends = list_schedule([10.0, 2.0, 4.0], [0, 2, 1], [set(), set(), {1}], [0.0, 0.0, 0.5])
    assert ends == [12.0, 2.0, 6.0]
