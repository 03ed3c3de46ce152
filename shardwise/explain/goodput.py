"""predict_goodput: the share of its time in which a long job makes progress, by policy of recovery."""

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import final

from shardwise.explain import text
from shardwise.explain.failing_job import simulate_job
from shardwise.explain.failures import SHORTEST_INTERVAL, Failures, RecoveryPolicy
from shardwise.explain.save_interval import best_interval
from shardwise.explain.save_schedule import SaveSchedule
from shardwise.explain.snapshot_memory import SnapshotMemory

_DAY = 86400.0
_ROUNDING = 1e-9  # of a ratio of intervals
_MOST_INTERRUPTIONS = 10**7  # of all simulated jobs: minutes of computation
_PARTS = ("lost", "saving", "recovering", "waiting", "shrunk")


@final
@dataclass(frozen=True)
class SaveTimes:
    """The seconds that saving takes.

    Attributes:
        step: the time of a step, the shortest interval.
        snapshot: the time for which a snapshot stops training.
        copy: until a snapshot is in the partner's memory, beside training.
        checkpoint: the time for which a checkpoint stops training.
    """

    step: float
    snapshot: float
    copy: float
    checkpoint: float


@final
@dataclass(frozen=True)
class GoodputRow:
    """The goodput of one policy: means over the simulated jobs.

    Attributes:
        policy: the policy.
        spare_nodes: the number of its spare nodes.
        schedule: when it saves.
        goodput: the progress of the job, as a share of that of the same devices without failures and saves.
        standard_error: the standard error of this mean.
        device_goodput: this progress, as a share of that of all devices, with the spare ones.
        parts: the shares of the time that are not progress: "lost" (trained again), "saving", "recovering", "waiting"
            (for nodes), and "shrunk" (replicas that were missing).
        interruptions: the failures of a job.
        disk_restores: the failures of a job after which the checkpoint on disk was restored.
    """

    policy: RecoveryPolicy
    spare_nodes: int
    schedule: SaveSchedule
    goodput: float
    standard_error: float
    device_goodput: float
    parts: dict[str, float]
    interruptions: float
    disk_restores: float

    @property
    def snapshot_interval(self) -> float | None:
        """The seconds of training between snapshots; None without snapshots."""
        return self.schedule.interval if self.policy.snapshots else None

    @property
    def checkpoint_interval(self) -> float:
        """The seconds of training between checkpoints."""
        return self.schedule.interval * self.schedule.cycles_per_checkpoint


@final
@dataclass(frozen=True, repr=False)
class Goodput:
    """The goodput of a job by policy of recovery. It prints as a table.

    Attributes:
        failures: the failures, and what recovery costs.
        devices: the number of devices that train.
        snapshot_memory: the host memory of the snapshots of policies with snapshots.
        rows: one per policy.
    """

    failures: Failures
    devices: int
    snapshot_memory: SnapshotMemory
    rows: tuple[GoodputRow, ...]

    @property
    def best(self) -> GoodputRow:
        """The policy with the highest goodput."""
        return max(self.rows, key=lambda row: row.goodput)

    def __str__(self) -> str:
        expected = self.failures.expected_interruptions(self.devices)
        heads = ["policy", "goodput", "with spares", "snapshots", "checkpoints", *_PARTS, "from disk"]
        lines = text.align([heads, *map(_cells, self.rows)], (10, -14, -11, -9, -11, *(-6 for _ in _PARTS), -9))
        return (
            f"{self.failures.days:g} days on {self.devices:,} devices with {expected:,.1f} expected interruptions "
            f"(means of {self.failures.trials} simulated jobs):\n" + "\n".join(lines) + self._memory_line()
        )

    def _memory_line(self) -> str:
        if not any(row.policy.snapshots for row in self.rows):
            return ""
        memory = self.snapshot_memory
        own, copies, held, peak = map(text.human_bytes, (memory.own, memory.copies, memory.held, memory.peak))
        return (
            f"\nsnapshots take {held} of host memory per process ({own} of its own devices, {copies} of others), and "
            f"{peak} while one is copied"
        )

    __repr__ = __str__


def predict_goodput(failures: Failures, devices: int, times: SaveTimes, memory: SnapshotMemory) -> Goodput:
    """Simulate jobs of all policies, with intervals that are given or best.

    Raises:
        ValueError: if so many interruptions are expected that the simulation would take hours.
    """
    jobs, expected = len(failures.policies) * failures.trials, failures.expected_interruptions(devices)
    if jobs * (1 + expected) > _MOST_INTERRUPTIONS:
        raise ValueError(
            f"Failures: {expected:,.0f} interruptions are expected on {devices:,} devices, in each of {jobs:,} jobs to "
            f"simulate (trials times policies). Lower per_device_day, days or trials until the product is below "
            f"{_MOST_INTERRUPTIONS:,}"
        )
    return Goodput(
        failures, devices, memory, tuple(_simulate(failures, policy, devices, times) for policy in failures.policies)
    )


def save_schedule(failures: Failures, policy: RecoveryPolicy, devices: int, times: SaveTimes) -> SaveSchedule:
    """Return when a policy saves: with the intervals that `failures` state, or with those of the highest goodput.

    Snapshots are for all failures, and checkpoints for failures that take the snapshots.
    """
    rate = failures.per_device_day * devices / _DAY
    shortest = max(times.step, failures.write_seconds, SHORTEST_INTERVAL)
    if not policy.snapshots:
        interval = failures.checkpoint_interval or best_interval(rate, times.checkpoint, shortest)
        interval = min(interval, failures.seconds)
        return SaveSchedule(interval, 0.0, 0.0, 1, times.checkpoint, failures.write_seconds)
    others = failures.nodes_of(devices) - 1
    window = failures.recovery_seconds + times.copy  # in which some blocks have one copy
    lost_pairs = min(1.0, -math.expm1(-rate * window) * 2 / others) if others else 1.0
    to_disk = rate * (failures.wide_share + (1 - failures.wide_share) * lost_pairs)
    checkpoints = failures.checkpoint_interval or best_interval(to_disk, times.checkpoint, shortest)
    interval = failures.snapshot_interval or best_interval(
        rate, times.snapshot, max(times.step, times.copy, SHORTEST_INTERVAL)
    )
    interval = min(interval, checkpoints, failures.seconds)
    cycles = math.ceil(min(checkpoints, failures.seconds) / interval - _ROUNDING)
    return SaveSchedule(interval, times.snapshot, times.copy, cycles, times.checkpoint, failures.write_seconds)


def _simulate(failures: Failures, policy: RecoveryPolicy, devices: int, times: SaveTimes) -> GoodputRow:
    schedule = save_schedule(failures, policy, devices, times)
    seeds = range(failures.seed * failures.trials, (failures.seed + 1) * failures.trials)
    jobs = [simulate_job(failures, policy, schedule, devices, seed) for seed in seeds]
    shares = [job.useful / failures.seconds for job in jobs]
    spares = failures.spares_of(devices) if policy.spares else 0
    return GoodputRow(
        policy=policy,
        spare_nodes=spares,
        schedule=schedule,
        goodput=fmean(shares),
        standard_error=stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan,
        device_goodput=fmean(shares) * devices / (devices + spares * failures.devices_per_node),
        parts={part: fmean(getattr(job, part) for job in jobs) / failures.seconds for part in _PARTS},
        interruptions=fmean(job.interruptions for job in jobs),
        disk_restores=fmean(job.disk_restores for job in jobs),
    )


def _cells(row: GoodputRow) -> list[str]:
    snapshots = "" if row.snapshot_interval is None else text.human_seconds(row.snapshot_interval)
    parts = [f"{100 * row.parts[part]:.2f}%" for part in _PARTS]
    return [
        row.policy.name,
        f"{100 * row.goodput:.2f} ± {100 * row.standard_error:.2f}%",
        f"{100 * row.device_goodput:.2f}%",
        snapshots,
        text.human_seconds(row.checkpoint_interval),
        *parts,
        f"{row.disk_restores:.1f}",
    ]
