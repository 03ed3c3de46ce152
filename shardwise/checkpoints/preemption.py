"""Preemption: a SIGTERM to any process makes all processes save the same step and stop."""

import signal
import threading
from types import FrameType
from typing import Any, final

from shardwise.runtime.cluster import cluster
from shardwise.runtime.preemption import preemption


@final
class Preemption:
    """Notices SIGTERM: in a cluster by XLA's preemption manager, which agrees with the other processes on the step."""

    def __init__(self) -> None:
        self._is_signalled = False
        self._previous: Any = None

    def install(self) -> None:
        """Notice SIGTERM from now on. Without a cluster, only the main thread can."""
        if cluster.store is not None:
            preemption.watch(cluster.store)
        elif threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)

    def uninstall(self) -> None:
        """Handle SIGTERM as before. In a cluster, XLA keeps noticing it."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True

    def reached(self, step: int) -> bool:
        """Return whether this is the step that all processes save. Each calls it with the same steps, in order."""
        return self._is_signalled or preemption.reached_sync_point(cluster.store, step)
