"""simulate_job: one long job with random failures, event by event.

Events are failures, nodes that return, and the end of recoveries. Between two events the schedule of saves determines
what was trained and what is safe, so that a job takes as many steps as it has events.
"""

import heapq
import math
import random
from dataclasses import dataclass
from typing import final

from shardwise.explain.failures import Failures, RecoveryPolicy
from shardwise.explain.save_schedule import SaveSchedule

_DAY = 86400.0


@final
@dataclass
class JobRecord:
    """Where the time of a job went, in seconds that add up to those of the job, and what happened.

    Attributes:
        useful: training of which the result was kept, with all replicas.
        lost: training that was repeated.
        saving: stops for snapshots and checkpoints.
        recovering: recoveries and restarts.
        waiting: for nodes.
        shrunk: the share of the replicas that were missing, while the others trained.
        interruptions: the number of failures.
        disk_restores: the number of failures after which the checkpoint on disk was restored.
    """

    useful: float = 0.0
    lost: float = 0.0
    saving: float = 0.0
    recovering: float = 0.0
    waiting: float = 0.0
    shrunk: float = 0.0
    interruptions: int = 0
    disk_restores: int = 0


def simulate_job(
    failures: Failures, policy: RecoveryPolicy, schedule: SaveSchedule, devices: int, seed: int
) -> JobRecord:
    """Return the record of one job. Equal arguments have equal results."""
    return _Job(failures, policy, schedule, devices, random.Random(seed)).run()


@final
class _Job:
    """A job at a time. Trained seconds are those of the whole mesh."""

    def __init__(
        self, failures: Failures, policy: RecoveryPolicy, schedule: SaveSchedule, devices: int, rng: random.Random
    ):
        self.failures, self.policy, self.schedule, self.rng = failures, policy, schedule, rng
        self.nodes = failures.nodes_of(devices)
        self.healthy = self.nodes + (failures.spares_of(devices) if policy.spares else 0)
        self.rate = failures.per_device_day * devices / _DAY  # of failures, if all replicas train
        self.returns: list[float] = []  # a heap of the times at which nodes return
        self.now = 0.0
        self.pause = 0.0  # seconds of recovery before the training goes on
        self.trained = 0.0
        self.on_disk = 0.0  # what was trained before the newest checkpoint
        self.in_memory: float | None = None  # what was trained before the newest snapshot that is safe
        self.is_exposed = False  # whether some blocks have one copy in memory, until the snapshot is copied again
        self.cycles = 0  # of the schedule, since the newest checkpoint
        self.record = JobRecord()

    def run(self) -> JobRecord:
        while self.now < self.failures.seconds:
            while self.returns and self.returns[0] <= self.now:
                heapq.heappop(self.returns)
                self.healthy += 1
            if active := self._active(self.healthy):
                self._train(active)
            else:
                until = min(self.returns[0], self.failures.seconds)
                self.record.waiting += until - self.now
                self.now = until
        self.record.useful = self.trained
        return self.record

    def _active(self, healthy: int) -> int:
        """Return the nodes that train if some are healthy."""
        if healthy >= self.nodes:
            return self.nodes
        return healthy - healthy % self.failures.replica_nodes if self.policy.shrinks else 0

    def _train(self, active: int) -> None:
        """Recover and train until a failure, until the job can grow, or until the end."""
        share = active / self.nodes
        failure = self.now + self.rng.expovariate(self.rate * share) if self.rate else math.inf
        resumed = self.now + self.pause
        end = min(failure, max(resumed, self._growth(active)), self.failures.seconds)
        self.record.recovering += min(end, resumed) - self.now
        seconds = max(0.0, end - resumed)
        start = self.schedule.time_after(self.cycles)
        time = start + seconds
        trained = self.schedule.trained(time) - self.schedule.trained(start)
        self.record.saving += seconds - trained
        self.record.shrunk += trained * (1 - share)
        self._save(start, time, share)
        self.trained += trained * share
        self.now, self.pause = end, self.failures.recovery_seconds
        if end == failure:
            self._fail(active)

    def _growth(self, active: int) -> float:
        """Return the time at which enough nodes have returned to train on more of them."""
        for count, time in enumerate(sorted(self.returns), 1):
            if self._active(self.healthy + count) > active:
                return time
        return math.inf

    def _save(self, start: float, time: float, share: float) -> None:
        """Note what was saved while the job trained from `start` until `time` of the schedule."""
        schedule, first = self.schedule, min(self.cycles, self.schedule.cycles_per_checkpoint)
        snapshot, checkpoints = schedule.safe_snapshots(time), schedule.safe_checkpoints(time)
        on_disk = checkpoints * schedule.cycles_per_checkpoint
        if self.policy.snapshots and time - start >= schedule.snapshot_lag and time > start:
            # The state at the start was a snapshot at once, and was copied too.
            self.in_memory = self.trained + share * max(0, snapshot - first) * schedule.interval
            self.is_exposed = False
        if checkpoints:
            self.on_disk = self.trained + share * (on_disk - first) * schedule.interval
        self.cycles = max(0, schedule.cycles(time) - on_disk)

    def _fail(self, active: int) -> None:
        """Restore the newest state that survived, and let the failed node return later."""
        self.record.interruptions += 1
        kind = self.rng.random()
        is_node = kind < self.failures.node_share
        is_wide = not is_node and kind < self.failures.node_share + self.failures.wide_share
        if self.in_memory is None or is_wide or active == 1 or (self.is_exposed and self._hits_a_partner(active)):
            self.record.disk_restores += 1
            self._restore(self.on_disk, None, 0)
            self.pause = self.failures.restart_seconds
            missing = self.failures.replacement_seconds if is_node else 0.0  # the others start within the pause
        else:
            self._restore(
                self.in_memory, self.in_memory, round((self.in_memory - self.on_disk) / self.schedule.interval)
            )
            self.is_exposed = True
            missing = self.failures.replacement_seconds if is_node else self.failures.start_seconds
        if missing:
            self.healthy -= 1
            heapq.heappush(self.returns, self.now + missing)

    def _hits_a_partner(self, active: int) -> bool:
        """Return whether a second failure takes the only copies of some blocks.

        These are in the next node, which has the copies of the first one's, and in the node before, whose copies the
        first one had.
        """
        return self.rng.random() < 2 / (active - 1)

    def _restore(self, trained: float, in_memory: float | None, cycles: int) -> None:
        self.record.lost += self.trained - trained
        self.trained, self.in_memory, self.cycles = trained, in_memory, cycles
