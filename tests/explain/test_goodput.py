"""predict_goodput: intervals that no other beats, the order of policies, and the table."""

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.explain.goodput import SaveTimes, predict_goodput
from shardwise.explain.snapshot_memory import SnapshotMemory

LLAMA3 = sw.Failures()
MEMORY = SnapshotMemory(3 << 30, 1 << 30)
TIMES = SaveTimes(step=5.0, snapshot=0.5, copy=2.0, checkpoint=0.5)


@pytest.fixture(scope="module")
def llama3():
    return predict_goodput(LLAMA3, 16384, TIMES, MEMORY)


def test_more_means_of_recovery_have_more_goodput(llama3):
    rows = {row.policy.name: row for row in llama3.rows}
    assert len(rows) == 6
    assert rows["disk"].goodput < rows["memory"].goodput < rows["disk, spares"].goodput
    for name in ("memory, shrink", "memory, spares", "memory, spares, shrink"):
        assert rows[name].goodput > rows["disk, spares"].goodput + 0.01
    for row in llama3.rows:
        assert row.goodput + sum(row.parts.values()) == pytest.approx(1)
        assert row.standard_error < 0.005
        share = 2048 / 2056 if row.policy.spares else 1
        assert row.device_goodput == pytest.approx(row.goodput * share)
    assert abs(rows["memory, spares"].interruptions - 419) < 4 * (419 / LLAMA3.trials) ** 0.5
    assert llama3.best.goodput == max(row.goodput for row in llama3.rows)


def test_the_table(llama3):
    lines = str(llama3).splitlines()
    assert lines[0] == ("54 days on 16,384 devices with 419.0 expected interruptions (means of 20 simulated jobs):")
    heads = "policy goodput with spares snapshots checkpoints lost saving recovering waiting shrunk from disk"
    assert lines[1].split() == heads.split()
    assert len(lines) == 9 and all("%" in line for line in lines[2:8])
    assert lines[8] == (
        "snapshots take 4.3 GB of host memory per process (3.2 GB of its own devices, 1.1 GB of others), and 8.6 GB "
        "while one is copied"
    )
    disk = sw.RecoveryPolicy("disk")
    assert "snapshots take" not in str(replace(llama3, rows=tuple(row for row in llama3.rows if row.policy == disk)))


@pytest.mark.slow
def test_equal_seeds_have_equal_results_and_others_differ(llama3):
    assert predict_goodput(LLAMA3, 16384, TIMES, MEMORY) == llama3
    assert predict_goodput(replace(LLAMA3, seed=1), 16384, TIMES, MEMORY).rows[0].goodput != llama3.rows[0].goodput


@pytest.mark.table(default=1)
@pytest.mark.parametrize("policy", [sw.RecoveryPolicy("disk", spares=True), sw.RecoveryPolicy("m", True, True)])
def test_no_other_interval_has_more_goodput(policy):
    """Simulated jobs, not the formula that chose the intervals, have least losses with these."""
    failures = sw.Failures(days=200, policies=(policy,), spare_nodes=50, wide_share=0.2, write_seconds=1.0)
    times = SaveTimes(step=1.0, snapshot=4.0, copy=2.0, checkpoint=10.0)
    best = predict_goodput(failures, 16384, times, MEMORY).rows[0]
    for factor in (0.4, 2.5):
        intervals = {"checkpoint_interval": best.checkpoint_interval * factor}
        if best.snapshot_interval is not None:
            intervals["snapshot_interval"] = best.snapshot_interval * factor
        other = predict_goodput(replace(failures, **intervals), 16384, times, MEMORY).rows[0]
        assert other.checkpoint_interval == pytest.approx(intervals["checkpoint_interval"])
        assert best.goodput > other.goodput + 3 * (best.standard_error**2 + other.standard_error**2) ** 0.5


def test_intervals_are_not_shorter_than_steps_and_copies():
    times = SaveTimes(step=5.0, snapshot=0.0, copy=7.0, checkpoint=0.0)
    for row in predict_goodput(replace(LLAMA3, days=1, trials=1), 16384, times, MEMORY).rows:
        assert row.checkpoint_interval >= LLAMA3.write_seconds
        assert row.snapshot_interval in (None, 7.0)


def test_one_node_has_no_partner():
    failures = sw.Failures(days=100, per_device_day=0.1, trials=2, policies=(sw.RecoveryPolicy("memory", True),))
    row = predict_goodput(failures, 8, TIMES, MEMORY).rows[0]
    assert row.disk_restores == row.interruptions > 0


@pytest.mark.parametrize("values", [{"per_device_day": 10.0}, {"trials": 10**9}, {"days": 1e9}])
def test_too_many_interruptions_to_simulate_are_an_error(values):
    with pytest.raises(ValueError, match=r"interruptions are expected on 16,384 devices.* Lower per_device_day"):
        predict_goodput(sw.Failures(**values), 16384, TIMES, MEMORY)


def test_saves_and_steps_may_take_no_time():
    failures = sw.Failures(days=0.01, snapshot_seconds=0.0)
    assert predict_goodput(failures, 64, SaveTimes(0.0, 0.0, 0.0, 0.0), MEMORY).best.goodput > 0.99
