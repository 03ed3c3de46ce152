"""Simulated times of schedules: closed formulas, and the bubbles of zero-bubble schedules."""

import json

import pytest

from shardwise.errors import StrategyError
from shardwise.parallel import TaskTimes, check_schedule, simulate_schedule, task_schedule

SIZES = [(2, 4), (4, 8), (4, 12), (8, 16)]
TIMES = [(1, 1, 1), (1, 1.2, 0.8), (1, 1.5, 0.7), (1, 1, 0.5), (0.5, 1, 1)]


def idle(name, ranks, microbatches, times, **options):
    simulation = simulate_schedule(task_schedule(name, ranks, microbatches, **options), times)
    assert max(simulation.idle) - min(simulation.idle) < 1e-9  # of equal stages, all ranks have the same work
    return simulation.idle[0]


@pytest.mark.parametrize("ranks, microbatches", SIZES)
@pytest.mark.parametrize("forward, input, weight", TIMES)
def test_idle_time_is_that_of_the_formulas(ranks, microbatches, forward, input, weight):
    times = TaskTimes(forward, input, weight)
    full = (ranks - 1) * (forward + input + weight)
    assert idle("gpipe", ranks, microbatches, times) == pytest.approx(full)
    assert idle("1f1b", ranks, microbatches, times) == pytest.approx(full)
    halves = TaskTimes(forward / 2, input / 2, weight / 2)
    assert idle("interleaved", ranks, microbatches, halves, chunks=2) == pytest.approx(full / 2)


@pytest.mark.parametrize("ranks, microbatches", SIZES)
def test_h1_has_a_third_of_the_idle_time_for_equal_tasks(ranks, microbatches):
    """At 1F1B's peak memory, (p − 1)·max(F, I) is a lower bound: rank 0 may not start more forward passes."""
    assert idle("zb-h1", ranks, microbatches, TaskTimes()) == pytest.approx(ranks - 1)
    schedule = task_schedule("zb-h1", ranks, microbatches)
    check_schedule(schedule, max_activations=max(task_schedule("1f1b", ranks, microbatches).peak_activations))


@pytest.mark.parametrize("ranks, microbatches", [*SIZES[:-1], pytest.param(8, 16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("forward, input, weight", TIMES)
def test_v_has_at_most_a_third_of_the_idle_time(ranks, microbatches, forward, input, weight):
    """Each of the two stages of a rank is half of its layers: half of the time, half of the memory."""
    halves = TaskTimes(forward / 2, input / 2, weight / 2)
    schedule = task_schedule("zb-v", ranks, microbatches, times=halves)
    full = idle("1f1b", ranks, microbatches, TaskTimes(forward, input, weight))
    assert max(simulate_schedule(schedule, halves).idle) <= full / 3
    check_schedule(schedule, max_activations=2 * max(task_schedule("1f1b", ranks, microbatches).peak_activations))


@pytest.mark.parametrize("ranks, microbatches", SIZES)
def test_dualpipe_has_less_idle_time_than_1f1b(ranks, microbatches):
    schedule = task_schedule("dualpipe", ranks, microbatches)
    check_schedule(schedule, max_activations=ranks + 1)
    assert max(simulate_schedule(schedule, TaskTimes()).idle) <= (ranks - 1) * 3 / 3


def test_transfers_delay_tasks_on_other_ranks_only():
    times = TaskTimes(1.0, 1.0, 1.0, transfer=0.5)
    simulation = simulate_schedule(task_schedule("1f1b", 2, 1), times)
    assert simulation.spans == (((0.0, 1.0), (4.5 + 0.5 - 0.0, 7.0)), ((1.5, 2.5), (2.5, 4.5)))
    assert simulate_schedule(task_schedule("1f1b", 1, 3), times).total == 9.0


def test_times_of_each_stage():
    times = TaskTimes([1.0, 3.0], [1.0, 3.0], [1.0, 3.0])
    simulation = simulate_schedule(task_schedule("1f1b", 2, 4), times)
    assert simulation.total == 1 + 4 * 9 + 2 and simulation.idle == (27.0, 3.0)
    assert simulation.bubble == pytest.approx(30 / 78)


def test_deadlocks_are_errors():
    schedule = task_schedule("1f1b", 2, 2)
    reverse = type(schedule)("reverse", 2, 2, tuple(tasks[::-1] for tasks in schedule.ranks))
    with pytest.raises(StrategyError, match=r"the ranks \[0, 1\] deadlock"):
        simulate_schedule(reverse, TaskTimes())


def test_description_and_trace(tmp_path):
    simulation = simulate_schedule(task_schedule("1f1b", 2, 2), TaskTimes(1.0, 1.0, 1.0))
    assert str(simulation).splitlines() == [
        "1f1b: total 9, bubble 33.3%",
        "rank 0  idle 3, 2 live activations",
        "rank 1  idle 3, 1 live activations",
    ]
    simulation.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert tracks == {0: "rank 0", 1: "rank 1"}
    spans = {(each["tid"], each["name"]): (each["ts"], each["dur"]) for each in events if each["ph"] == "X"}
    assert len(spans) == 8 and spans[1, "B1.0"] == (2e6, 2e6) and spans[0, "B0.1"] == (7e6, 2e6)
    counts = [each["args"]["activations"] for each in events if each["name"] == "live activations of rank 0"]
    assert counts == [1, 2, 1, 0]
