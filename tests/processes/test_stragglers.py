"""Processes that delay the others: the comparison of paces, and the warning of the coordinator."""

import threading
import time

import pytest

from shardwise.base.config import config
from shardwise.processes.stragglers import Pace, PaceMeter, Straggler, StragglerSearch
from tests.processes.members import coordinator, join, leave_all, wait_until


def search(samples, seconds=60.0, step=1.0):
    """Return the results of samples; each has the busy seconds per step of every process."""
    found, totals, result = StragglerSearch(seconds), {}, []
    for number, sample in enumerate([{rank: 0.0 for rank in samples[0]}, *samples]):
        for rank, busy in sample.items():
            steps, total = totals.get(rank, (0, 0.0))
            totals[rank] = (steps + 10, total + 10 * busy)
        paces = {rank: Pace(*totals[rank]) for rank in sample}
        result.append(found.add(number * 10 * step, paces))
    return result


def test_a_process_that_is_slow_for_all_samples_is_found():
    results = search([{0: 0.1, 1: 0.9, 2: 0.2, 3: 0.1}] * 12)
    assert [each is not None for each in results] == ([False] * 6 + [True]) + ([False] * 5 + [True])
    rank, busy, others = results[6]
    assert rank == 1 and busy == pytest.approx(0.9) and others == pytest.approx(0.1)


def test_two_slow_processes_are_found_though_each_is_the_slowest_in_turn():
    samples = [{0: 0.8 + 0.1 * (number % 2), 1: 0.1, 2: 0.9 - 0.1 * (number % 2), 3: 0.1} for number in range(7)]
    assert sorted(result[0] for result in search(samples) if result is not None) == [0, 2]


def test_waits_of_the_thread_that_runs_the_steps_are_not_counted_as_work():
    meter = PaceMeter()
    meter.end_step()
    meter.add_wait(time.monotonic() - 100)
    thread = threading.Thread(target=meter.add_wait, args=(time.monotonic() - 1000,))
    thread.start()
    thread.join()
    assert 100 <= meter.waited_seconds < 1000
    meter.end_step()
    assert meter.pace.steps == 2 and meter.pace.busy_seconds < 100


@pytest.mark.parametrize(
    "samples",
    [
        [{0: 0.1, 1: 0.25}] * 20,  # less than a fifth of a step
        [{0: 0.9, 1: 0.9}] * 20,  # both
        [{0: 0.1, 1: 0.9}, {0: 0.9, 1: 0.1}] * 10,  # in turn
        [*[{0: 0.1, 1: 0.9}] * 5, {0: 0.1, 1: 0.1}] * 3,  # not for long enough
        [{0: 0.9}] * 20,  # alone
    ],
)
def test_others_are_not(samples):
    assert not any(search(samples))


def test_samples_without_steps_or_answers_are_left_out():
    found = StragglerSearch(60.0)
    for number in range(20):
        assert found.add(10.0 * number, {0: Pace(number, 0.1 * number), 1: Pace(3, 7.0)}) is None
        assert found.add(10.0 * number + 5, {}) is None
    assert Pace.parse("") is None and Pace.parse("1 a") is None and Pace.parse("1 2 3") is None
    assert Pace.parse(str(Pace(7, 0.125))) == Pace(7, 0.125)


@pytest.mark.faults
def test_the_coordinator_reports_a_process_with_its_host_and_stack(caplog):
    """Two threads are members. One waits for the other, which sleeps on the host."""
    reports, end = [], threading.Event()
    with config.override("straggler_seconds", 1.2), coordinator(2, on_straggler=reports.append) as server:
        first, second = join(server, range(2))
        for rank, member in enumerate((first, second)):
            member.answers["stack"] = lambda _, rank=rank: f"the stack of {rank}"

        def train():
            for step in range(10**6):
                time.sleep(0.02)  # of `second`; `first` waits
                first.pace.waited_seconds += 0.02
                for member in (first, second):
                    member.report_step(step)
                if end.is_set():
                    return

        thread = threading.Thread(target=train)
        thread.start()
        try:
            wait_until(lambda: reports)
        finally:
            end.set()
            thread.join()
        straggler = reports[0]
        assert isinstance(straggler, Straggler) and straggler.rank == 1 and straggler.host
        assert straggler.busy_seconds > straggler.other_seconds and straggler.stack == "the stack of 1"
        assert f"process 1 on {straggler.host} delays the others: it works" in caplog.text
        assert "--replace-stragglers` replaces such" in caplog.text and "the stack of 1" in caplog.text
        leave_all([first, second])
