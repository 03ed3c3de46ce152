"""SaveSchedule against a list of all its training, stops and saves, one after the other."""

import random

import pytest

from shardwise.explain.save_schedule import SaveSchedule


def events_until(schedule, time):
    """Return what a job did until `time`: the seconds of training, and the ends of cycles and checkpoints."""
    now = trained = 0.0
    cycles, checkpoints = [], []
    while now < time:
        for _ in range(schedule.cycles_per_checkpoint):
            trained += max(0.0, min(schedule.interval, time - now))
            now += schedule.interval + schedule.snapshot_stop
            cycles.append(now)
        now += schedule.checkpoint_stop
        checkpoints.append(now)
    return trained, cycles, checkpoints


@pytest.mark.parametrize("seed", range(30))
def test_a_schedule_is_its_events(seed):
    rng = random.Random(seed)
    schedule = SaveSchedule(
        interval=rng.uniform(1, 10),
        snapshot_stop=rng.choice([0.0, rng.uniform(0, 2)]),
        snapshot_lag=rng.uniform(0, 3),
        cycles_per_checkpoint=rng.randint(1, 5),
        checkpoint_stop=rng.choice([0.0, rng.uniform(0, 4)]),
        checkpoint_lag=rng.uniform(0, 20),
    )
    for _ in range(20):
        time = rng.uniform(0, 200)
        trained, cycles, checkpoints = events_until(schedule, time)
        assert schedule.trained(time) == pytest.approx(trained)
        assert schedule.cycles(time) == sum(end <= time for end in cycles)
        assert schedule.safe_snapshots(time) == sum(end + schedule.snapshot_lag <= time for end in cycles)
        assert schedule.safe_checkpoints(time) == sum(end + schedule.checkpoint_lag <= time for end in checkpoints)
        count = rng.randint(0, schedule.cycles_per_checkpoint)
        start = schedule.time_after(count)
        assert schedule.trained(start) == pytest.approx(count * schedule.interval)
