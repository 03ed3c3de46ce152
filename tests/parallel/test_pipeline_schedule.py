"""Schedules of pipelines: dependencies, bubbles and stored microbatches, for all small sizes."""

from fractions import Fraction

import pytest

from shardwise.errors import StrategyError
from shardwise.parallel import pipeline_schedule

SIZES = [
    (name, devices, microbatches, chunks)
    for name in ("gpipe", "1f1b", "interleaved")
    for devices in range(1, 7)
    for microbatches in range(1, 13)
    for chunks in (range(1, 5) if name == "interleaved" else (1,))
    if name != "interleaved" or microbatches % devices == 0
]


def schedules():
    for sizes in SIZES:
        yield pipeline_schedule(*sizes)


def ticks_of_units(schedule):
    """Return the tick of every unit, by its kind, microbatch and stage."""
    return [
        ((unit.kind, unit.microbatch, unit.chunk * schedule.devices + device), tick)
        for device, row in enumerate(schedule.table)
        for tick, unit in enumerate(row)
        if unit
    ]


def test_every_unit_runs_once():
    for schedule in schedules():
        stages = schedule.devices * schedule.chunks
        expected = {
            (kind, index, stage) for kind in "FB" for index in range(schedule.microbatches) for stage in range(stages)
        }
        units = [unit for unit, _ in ticks_of_units(schedule)]
        assert len(units) == len(expected) and set(units) == expected, schedule


def test_a_unit_runs_after_those_that_it_depends_on():
    for schedule in schedules():
        tick = dict(ticks_of_units(schedule))
        last = schedule.devices * schedule.chunks - 1
        for (kind, number, stage), own in tick.items():
            if kind == "F" and stage > 0:
                assert tick["F", number, stage - 1] < own, schedule
            if kind == "B":
                assert tick["F", number, stage] < own, schedule
                assert stage == last or tick["B", number, stage + 1] < own, schedule


def test_a_value_is_used_in_the_next_tick_of_its_kind():
    """A device keeps what it receives for one round only: the loops have no queues."""
    for schedule in schedules():
        tick = dict(ticks_of_units(schedule))
        rounds = {kind: [t for t, k in enumerate(schedule.kinds) if k == kind] for kind in "FB"}
        for (kind, number, stage), own in tick.items():
            before = tick.get((kind, number, stage - 1 if kind == "F" else stage + 1))
            assert before is None or rounds[kind].index(own) == rounds[kind].index(before) + 1, schedule


def test_bubble_is_the_formula():
    for schedule in schedules():
        p, m, v = schedule.devices, schedule.microbatches, schedule.chunks
        bubble = Fraction(p - 1, v * m + p - 1)
        assert schedule.ticks == 2 * (v * m + p - 1)
        assert all(Fraction(idle, schedule.ticks) == bubble for idle in schedule.idle), schedule
        assert schedule.bubble == pytest.approx(float(bubble))


def test_all_devices_do_units_of_one_kind_in_a_tick():
    """So the time of a tick is that of one unit, also if backward passes take longer than forward passes."""
    for schedule in schedules():
        for tick, kind in enumerate(schedule.kinds):
            assert {row[tick].kind for row in schedule.table if row[tick]} == {kind}
        assert schedule.kinds.count("F") == schedule.kinds.count("B") == schedule.ticks // 2


def test_stored_inputs_are_the_formula_and_slots_are_not_overwritten():
    for schedule in schedules():
        p, m, v = schedule.devices, schedule.microbatches, schedule.chunks
        for device, row in enumerate(schedule.table):
            slots = {}
            most = 0
            for unit in filter(None, row):
                if unit.kind == "F":
                    assert unit.slot not in slots
                    slots[unit.slot] = unit.microbatch, unit.chunk
                    most = max(most, len(slots))
                else:
                    assert slots.pop(unit.slot) == (unit.microbatch, unit.chunk)
            assert schedule.stored[device] == most == max(slots, default=most)
            if schedule.name == "gpipe":
                assert most == m
            else:
                assert most <= min(v * m, v * p + p - 1 - 2 * device)
                if m >= 2 * p:  # enough microbatches to fill the pipeline
                    assert most == v * p + p - 1 - 2 * device


def test_memory_of_1f1b_does_not_grow_with_microbatches():
    few, many = (pipeline_schedule("1f1b", 4, count) for count in (8, 200))
    assert few.stored == many.stored == (7, 5, 3, 1)
    assert [max(pipeline_schedule("gpipe", 4, count).stored) for count in (8, 200)] == [8, 200]


def test_chunks_make_the_bubble_smaller():
    schedules = [pipeline_schedule("interleaved", 4, 8, chunks) for chunks in (1, 2, 4)]
    assert [schedule.idle for schedule in schedules] == [(6,) * 4] * 3  # units are 1/chunks as long


def test_print_draws_the_schedule():
    assert str(pipeline_schedule("gpipe", 2, 2)).splitlines() == [
        "gpipe: 2 devices, 2 microbatches",
        "device 0  F0 F1 ·  ·  B1 B0",
        "device 1  ·  F0 F1 B1 B0 ·",
        "6 ticks, each device is idle in 2 (33.3%); stored stage inputs: 2, 2",
    ]
    assert str(pipeline_schedule("interleaved", 2, 2, 2)).splitlines() == [
        "interleaved: 2 devices, 2 microbatches, 2 chunks",
        "device 0  F0a F1a F0b F1b ·   ·   B0b B1b B0a B1a",
        "device 1  ·   F0a F1a F0b B0b F1b B1b B0a B1a ·",
        "10 ticks, each device is idle in 2 (20.0%); stored stage inputs: 4, 3",
    ]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (("2f2b", 4, 8), "unknown schedule '2f2b': use 'gpipe', '1f1b', 'interleaved'"),
        (("gpipe", 4, 0), "microbatches must be a positive integer, not 0"),
        (("gpipe", 4, True), "microbatches must be a positive integer, not True"),
        (("gpipe", 0, 4), "the number of devices must be a positive integer, not 0"),
        (("interleaved", 4, 8, 0), "chunks must be a positive integer, not 0"),
        (("1f1b", 4, 8, 2), "schedule '1f1b' has one stage on each device, not chunks=2: use schedule='interleaved'"),
        (("interleaved", 4, 6, 2), "which does not divide 6 microbatches: use 8 microbatches, or schedule='1f1b'"),
    ],
)
def test_bad_sizes_are_errors(sizes, message):
    with pytest.raises(StrategyError, match=message.replace("(", r"\(")):
        pipeline_schedule(*sizes)
