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


@given(tasks(), st.sampled_from([1, 4, 256]), st.sampled_from([0.0, 0.25]))
def test_needs_are_met_streams_run_one_task_and_do_not_wait_for_nothing(work, window, interference):
    seconds, streams, needs = work
    starts, ends = list_schedule(seconds, streams, needs, interference, window)
    for index, need in enumerate(needs):
        assert all(ends[other] <= starts[index] for other in need)
    for stream in range(3):
        order = sorted((starts[n], ends[n]) for n in range(len(seconds)) if streams[n] == stream)
        assert all(end <= start for (_, end), (start, _) in pairwise(order))
    durations = [end - start for start, end in zip(starts, ends, strict=True)]
    communicating = [(starts[n], ends[n]) for n in range(len(seconds)) if streams[n] == COMMUNICATION]
    for n, duration in enumerate(durations):
        beside = sum(max(0.0, min(ends[n], end) - max(starts[n], start)) for start, end in communicating)
        added = interference * beside if streams[n] == COMPUTE else 0.0
        assert duration == pytest.approx(seconds[n] + added)
    longest = _critical_path(durations, needs)
    per_stream = [sum(s for s, c in zip(durations, streams, strict=True) if c == stream) for stream in range(3)]
    assert max(longest, *per_stream) - 1e-9 <= max(ends) <= sum(durations) + 1e-9


def _critical_path(seconds, needs):
    ends = []
    for duration, need in zip(seconds, needs, strict=True):
        ends.append(duration + max((ends[other] for other in need), default=0.0))
    return max(ends)


def test_the_first_ready_task_runs_first():
    starts, ends = list_schedule([5.0, 1.0, 1.0, 1.0], [1, 0, 0, 0], [set(), {0}, set(), set()])
    assert starts == [0.0, 5.0, 0.0, 1.0] and ends == [5.0, 6.0, 1.0, 2.0]


def test_a_collective_slows_the_kernel_beside_it_down():
    starts, ends = list_schedule([10.0, 4.0, 1.0], [0, 1, 0], [set(), set(), {0}], interference=0.25)
    assert starts == [0.0, 0.0, 11.0]
    assert ends == [11.0, 4.0, 12.0]  # 3 seconds of work in the first 4, and 7 after them


def test_a_collective_that_starts_later_slows_the_rest_of_a_kernel_down():
    _, ends = list_schedule([10.0, 2.0, 4.0], [0, 2, 1], [set(), set(), {1}], interference=0.5)
    assert ends == [12.0, 2.0, 6.0]
