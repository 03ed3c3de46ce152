"""SaveSchedule: when a job trains, and when it stops for snapshots in memory and checkpoints on disk."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class SaveSchedule:
    """Cycles of training, each followed by a stop for a snapshot; some cycles are followed by a stop for a checkpoint.

    A time on the schedule is in seconds since the end of the last checkpoint, without pauses for recovery.

    Attributes:
        interval: the seconds of training in a cycle.
        snapshot_stop: the seconds for which a snapshot stops training.
        snapshot_lag: the seconds after this stop until the snapshot is safe in another node's memory.
        cycles_per_checkpoint: the cycles between two checkpoints.
        checkpoint_stop: the seconds for which a checkpoint stops training.
        checkpoint_lag: the seconds after this stop until the checkpoint is on disk.
    """

    interval: float
    snapshot_stop: float
    snapshot_lag: float
    cycles_per_checkpoint: int
    checkpoint_stop: float
    checkpoint_lag: float

    @property
    def _cycle(self) -> float:
        return self.interval + self.snapshot_stop

    @property
    def _period(self) -> float:
        """The seconds from one checkpoint to the next."""
        return self.cycles_per_checkpoint * self._cycle + self.checkpoint_stop

    def time_after(self, cycles: int) -> float:
        """Return the time at which some cycles after a checkpoint are done, of at most `cycles_per_checkpoint`."""
        return min(cycles, self.cycles_per_checkpoint) * self._cycle

    def trained(self, time: float) -> float:
        """Return the seconds of training until `time`."""
        periods, rest = divmod(time, self._period)
        cycles = min(rest // self._cycle, self.cycles_per_checkpoint)
        last = min(rest - cycles * self._cycle, self.interval) if cycles < self.cycles_per_checkpoint else 0.0
        return (periods * self.cycles_per_checkpoint + cycles) * self.interval + last

    def cycles(self, time: float) -> int:
        """Return the number of cycles that are done at `time`."""
        if time < 0:
            return 0
        periods, rest = divmod(time, self._period)
        return int(periods * self.cycles_per_checkpoint + min(rest // self._cycle, self.cycles_per_checkpoint))

    def safe_snapshots(self, time: float) -> int:
        """Return the number of the last cycle whose snapshot is safe at `time`."""
        return self.cycles(time - self.snapshot_lag)

    def safe_checkpoints(self, time: float) -> int:
        """Return the number of checkpoints that are on disk at `time`."""
        return max(0, int((time - self.checkpoint_lag) // self._period))
