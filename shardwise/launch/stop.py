"""Stop: the signals that end the processes of an attempt, one after the other."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

# Seconds that the other processes have after a failure to report it themselves; and seconds after a process ends early
# with exit code 0, in which the others may end too.
FAILURE_TIME = 1.0
# After a failure and after Ctrl-C: the signals, with the seconds after which each is sent.
AFTER_FAILURE = ((FAILURE_TIME, signal.SIGTERM), (FAILURE_TIME + 2.0, signal.SIGKILL))
AFTER_INTERRUPT = ((0.0, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGKILL))
AFTER_SECOND_INTERRUPT = ((0.0, signal.SIGKILL),)
KILL_TIME = 3.0  # seconds for processes to end after SIGKILL, and for the launchers of their nodes to report it


class Signalled(Protocol):
    """Processes that can be sent a signal: `Workers` of one node, or a `Fleet`."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes that run."""


@final
@dataclass
class Stop:
    """Signals to send to the processes that still run, with the seconds after which each is sent."""

    steps: Sequence[tuple[float, signal.Signals]]
    start: float = field(default_factory=time.monotonic)
    sent: int = 0

    def send_due(self, processes: Signalled) -> None:
        """Send the signals that are due."""
        while self.sent < len(self.steps) and time.monotonic() - self.start >= self.steps[self.sent][0]:
            processes.signal(self.steps[self.sent][1])
            self.sent += 1

    @property
    def is_overdue(self) -> bool:
        """Whether processes that still run were killed some time ago, as those of a node that does not answer."""
        return self.sent == len(self.steps) and time.monotonic() - self.start > self.steps[-1][0] + KILL_TIME


def stop_by_signal(number: signal.Signals, is_repeated: bool, grace_period: float) -> Stop:
    """Return the signals with which a signal to the launcher ends its processes.

    Args:
        number: the signal.
        is_repeated: whether it is not the first one.
        grace_period: the seconds from SIGTERM until the processes are killed.
    """
    if number != signal.SIGINT:
        return Stop(((0.0, signal.SIGTERM), (grace_period, signal.SIGKILL)))
    return Stop(AFTER_SECOND_INTERRUPT if is_repeated else AFTER_INTERRUPT)
