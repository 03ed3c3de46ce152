"""Preemption: a SIGTERM to any process makes all processes save the same step and stop."""

import signal
import threading
from types import FrameType
from typing import Any, final

from shardwise.runtime.client import process_count, process_index
from shardwise.runtime.cluster import cluster


@final
class Preemption:
    """Notices SIGTERM, and agrees with the other processes on the step to save.

    Every process calls `reached` with the same steps, in the same order.

    Args:
        name: the same in all processes, and different for each Preemption.
        timeout: how many seconds to wait for the others.
    """

    def __init__(self, name: str, timeout: float):
        self._name = f"preemption/{name}"
        self._timeout = timeout
        self._is_signalled = False
        self._step: int | None = None  # that all processes save
        self._previous: Any = None

    def install(self) -> None:
        """Handle SIGTERM from now on. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)

    def uninstall(self) -> None:
        """Handle SIGTERM as before."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True

    def reached(self, step: int) -> bool:
        """Return whether this is the step that all processes save before they stop."""
        if self._step is None and self._is_noticed():
            self._step = self._agreed_step(step)
        return self._step is not None and step >= self._step

    def _is_noticed(self) -> bool:
        if self._is_signalled or process_count() == 1:
            return self._is_signalled
        try:
            return bool(cluster.store.key_value_try_get(f"{self._name}/noticed"))
        except Exception:  # jaxlib's error for a key that is not there
            return False

    def _agreed_step(self, step: int) -> int:
        """Tell the others which step this process has reached, and return the latest of all.

        Every process waits here, so none goes beyond that step.
        """
        if process_count() == 1:
            return step
        store = cluster.store
        store.key_value_set(f"{self._name}/noticed", "1", allow_overwrite=True)
        store.key_value_set(f"{self._name}/{process_index()}", str(step))
        milliseconds = int(1000 * self._timeout)
        return max(
            int(store.blocking_key_value_get(f"{self._name}/{process}", milliseconds))
            for process in range(process_count())
        )
