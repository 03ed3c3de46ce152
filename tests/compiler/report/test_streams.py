"""The schedule of kernels on three streams: a property test of its rules."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardwise.compiler.report.streams import list_schedule


@st.composite
def tasks(draw):
    count = draw(st.integers(1, 30))
    seconds = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    streams = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    needs = [set(draw(st.lists(st.integers(0, index - 1), max_size=3))) if index else set() for index in range(count)]
    return [float(value) for value in seconds], streams, needs


@given(tasks(), st.sampled_from([1, 4, 256]))
def test_needs_are_met_streams_run_one_task_and_do_not_wait_for_nothing(work, window):
    seconds, streams, needs = work
    starts = list_schedule(seconds, streams, needs, window)
    ends = [start + duration for start, duration in zip(starts, seconds, strict=True)]
    for index, need in enumerate(needs):
        assert all(ends[other] <= starts[index] for other in need)
    for stream in range(3):
        order = sorted((starts[n], ends[n]) for n in range(len(seconds)) if streams[n] == stream)
        assert all(end <= start for (_, end), (start, _) in pairwise(order))
    total, longest = sum(seconds), _critical_path(seconds, needs)
    per_stream = [sum(s for s, c in zip(seconds, streams, strict=True) if c == stream) for stream in range(3)]
    assert max(longest, *per_stream) <= max(ends) <= total


def _critical_path(seconds, needs):
    ends = []
    for duration, need in zip(seconds, needs, strict=True):
        ends.append(duration + max((ends[other] for other in need), default=0.0))
    return max(ends)


def test_the_first_ready_task_runs_first():
    assert list_schedule([5.0, 1.0, 1.0, 1.0], [True, False, False, False], [set(), {0}, set(), set()]) == [
        0.0,
        5.0,
        0.0,
        1.0,
    ]
